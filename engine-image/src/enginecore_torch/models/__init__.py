"""The model families this engine computes."""
