"""Engines started by a client: their command, processes, handshake and coordinator."""
