"""CURVE, ZMQ's encryption: keys in files, who may connect as what, and ZMQ asked about it."""
