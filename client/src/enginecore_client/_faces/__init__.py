"""What applications hold: the clients, their options, their streams."""
