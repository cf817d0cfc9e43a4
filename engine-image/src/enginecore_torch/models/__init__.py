"""The model families this engine computes, one module each: weights by name and the forward pass.

Attention, cache and sampling are the same for all and stay outside.
"""
