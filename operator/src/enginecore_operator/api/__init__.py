"""The API: resource structs, conditions, labels, validation, CRD generation.

What belongs here describes objects; nothing here decides what to do or talks to a server.
"""
