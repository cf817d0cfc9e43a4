"""The one error the dev cluster raises for what its user can put right."""

from __future__ import annotations


class DevclusterError(Exception):
    """A step failed; the message names the step and the remedy."""
