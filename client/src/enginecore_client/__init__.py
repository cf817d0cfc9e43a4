"""The client: consumes the addresses of EngineCores, streams tokens, exports metrics."""
