"""Protocol and layout versions, and the rule by which two sides agree on them.

The protocol version counts this project's control messages (docs/protocol.md). The layout
names the array positions of vLLM's own messages; vLLM has no version number of its own.
"""

from enginecore_wire.layouts import Layout

PROTOCOL_VERSION = 1
"""The newest version of the control messages this code speaks."""

PROTOCOL_MINIMUM = 1
"""The oldest version it still speaks."""

LAYOUTS = tuple(layout.value for layout in Layout)
"""Layouts that both sides write and read (docs/protocol.md, "Layouts")."""


def agree(theirs: int, theirs_minimum: int) -> int | None:
    """Return the newest protocol version both sides speak, or None if there is none.

    Args:
        theirs: the newest version the peer speaks.
        theirs_minimum: the oldest version the peer speaks.
    """
    chosen = min(theirs, PROTOCOL_VERSION)
    return chosen if chosen >= max(theirs_minimum, PROTOCOL_MINIMUM) else None
