"""Storages for kopf that keep nothing.

kopf compares each object with a remembered copy for handlers of changes. There are none here,
and those copies were most of the operator's CPU time with hundreds of engines.
"""

from typing import Any

import kopf


class NoDiffBase(kopf.DiffBaseStorage):
    """Remembers no former state; every object looks the same."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Reduce any object to nothing."""
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """Return no former state."""
        return None

    def store(self, **_: Any) -> None:
        """Store nothing."""


class NoProgress(kopf.ProgressStorage):
    """Remembers no progress of handlers and writes no annotation."""

    def fetch(self, **_: Any) -> kopf.ProgressRecord | None:
        """Return no record."""
        return None

    def store(self, **_: Any) -> None:
        """Store nothing."""

    def purge(self, **_: Any) -> None:
        """Remove nothing."""

    def touch(self, **_: Any) -> None:
        """Touch nothing."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        """Return the essence as it is."""
        return essence
