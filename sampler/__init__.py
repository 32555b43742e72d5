"""The decoding loop over a Hugging Face causal model. Joins kernels and grammar."""
