"""msgpack with tensors: a message becomes a body frame and the buffers that follow it."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from enginecore_wire.arrays import parts_of
from enginecore_wire.tensors import EXT_RAW_VIEW, Tensor, pack, unpack

T = TypeVar("T")

Buffer = bytes | memoryview


class MsgpackEncoder:
    """Encodes messages of any of this package's types. Not safe across threads."""

    def __init__(self) -> None:
        self._aux: list[memoryview] = []
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._hook)

    def encode(self, message: Any) -> list[Buffer]:
        """Return the frames of `message`: the body, then one frame per large buffer.

        The later frames are views: keep their owners unchanged until they are sent.

        Raises:
            TypeError: the message holds something that could only be pickled.
        """
        self._aux = []
        body = self._encoder.encode(message)
        return [body, *self._aux]

    def _hook(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return pack(value, self._aux)
        parts = parts_of(value)
        if parts is not None:
            return pack(Tensor(*parts), self._aux)
        raise TypeError(f"{type(value).__qualname__} cannot be sent: only plain data travels")


class MsgpackDecoder(Generic[T]):
    """Decodes messages of one type. Not safe across threads."""

    def __init__(self, message_type: type[T]) -> None:
        self._aux: list[memoryview] = []
        self._decoder = msgspec.msgpack.Decoder(
            message_type, dec_hook=self._hook, ext_hook=_extension
        )

    def decode(self, body: Buffer, aux: Sequence[Buffer] = ()) -> T:
        """Return the message in `body`, whose large buffers came in the frames `aux`.

        Raises:
            msgspec.DecodeError: `body` is no msgpack.
            msgspec.ValidationError: it is not a message of this type; the text names
                the path of the offending item.
        """
        self._aux = [memoryview(frame) for frame in aux]
        try:
            return self._decoder.decode(body)
        except RecursionError:
            raise msgspec.DecodeError("message is nested too deeply") from None

    def _hook(self, wanted: type, value: Any) -> Any:
        if wanted is Tensor:
            return unpack(value, self._aux)
        raise NotImplementedError(wanted)


def _extension(code: int, data: memoryview) -> msgspec.msgpack.Ext:
    if code != EXT_RAW_VIEW:
        raise msgspec.ValidationError(
            f"extension type {code} is not accepted: it could carry a pickle"
        )
    return msgspec.msgpack.Ext(code, data)
