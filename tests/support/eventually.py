"""Waiting for a condition with a deadline: the public package's, under the name tests know."""

from enginecore_client.testing._waiting import eventually, eventually_async, throughout

__all__ = ["eventually", "eventually_async", "throughout"]
