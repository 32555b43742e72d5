"""The model that ships with the project: weights, the dialogues it learnt, how it was trained."""
