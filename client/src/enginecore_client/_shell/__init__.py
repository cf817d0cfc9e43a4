"""What moves a client: its driver, on a thread, on a loop, or in the caller's own steps."""
