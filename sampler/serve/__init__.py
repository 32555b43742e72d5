"""An OpenAI-compatible endpoint around the decoding loop: `python -m sampler.serve`."""
