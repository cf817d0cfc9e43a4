"""What a message that does not decode still tells about whom it concerned."""

from typing import Any, Final, NamedTuple

import msgspec

from enginecore_wire.frames import Frame

_UTILITY_OUTPUT: Final = 4
"""Position of a utility call's reply in EngineCoreOutputs, in every layout."""


class Concerned(NamedTuple):
    """Whose outputs a message has, and which call it answers."""

    request_ids: list[str]
    call_id: int | None


def concerned(body: Frame) -> Concerned | None:
    """Return whom an EngineCoreOutputs body concerns that does not decode as one; None if nobody
    can tell, and it may have been anybody."""
    try:
        tree: Any = _ANY.decode(body)
        ids = [output[0] for output in tree[1]]
        reply = tree[_UTILITY_OUTPUT] if len(tree) > _UTILITY_OUTPUT else None
        call_id = None if reply is None else reply[0]
    except (msgspec.DecodeError, RecursionError, TypeError, LookupError):
        return None
    legible = (
        isinstance(tree[1], list)
        and all(isinstance(name, str) for name in ids)
        and type(call_id) in (int, type(None))
    )
    return Concerned(ids, call_id) if legible else None


_ANY: Final = msgspec.msgpack.Decoder()
