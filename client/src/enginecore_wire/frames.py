"""Multipart layout: which frames make a message, and what kind of message frames are."""

from collections.abc import Sequence
from typing import Final

import msgspec

from enginecore_wire.codec import MsgpackDecoder
from enginecore_wire.control import CONTROL_TYPES, ControlMessage

_ENCODER = msgspec.msgpack.Encoder()
_DECODERS: Final = {code: MsgpackDecoder(kind) for code, kind in CONTROL_TYPES.items()}
_TYPE_FRAMES: Final = {kind: bytes((code,)) for code, kind in CONTROL_TYPES.items()}

Frame = bytes | memoryview


def encode_control(message: ControlMessage) -> list[bytes]:
    """Return the two frames of a control message: its type byte and its body."""
    return [_TYPE_FRAMES[type(message)], _ENCODER.encode(message)]


def control_type(first: Frame) -> int | None:
    """Return the control type of a message whose first frame is `first`, or None if it is an
    engine message."""
    if len(first) == 1 and 0x80 <= first[0] <= 0x8F:
        return first[0]
    return None


def decode_control(frames: Sequence[Frame]) -> ControlMessage | None:
    """Return the control message in `frames` (type, body), or None for a type this version
    does not know.

    Raises:
        msgspec.DecodeError: the first frame is no control type, there is no body, or it is
            not a map of that message.
    """
    kind = control_type(frames[0]) if frames else None
    if kind is None:
        raise msgspec.DecodeError("control message: expected a first frame of one byte, 80 to 8f")
    decoder = _DECODERS.get(kind)
    if decoder is None:
        return None
    if len(frames) != 2:
        raise msgspec.DecodeError(f"control message: expected 2 frames, got {len(frames)}")
    message: ControlMessage = decoder.decode(frames[1])
    return message
