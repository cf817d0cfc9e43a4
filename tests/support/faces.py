"""Clients under one set of blocking calls: the public package's, under the name tests know."""

from enginecore_client.testing.faces import FACES, AsyncFace, Face, SyncFace, params

__all__ = ["FACES", "AsyncFace", "Face", "SyncFace", "params"]
