"""msgpack with tensors: a message becomes a body frame and the buffers that follow it."""

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from enginecore_wire.arrays import parts_of
from enginecore_wire.multimodal import NestedTensors, unpack_nested
from enginecore_wire.plain import UnsendableError, read_extension, refuse_extensions
from enginecore_wire.requests import EngineCoreRequest, UtilityCall
from enginecore_wire.tensors import Tensor, pack, unpack

T = TypeVar("T")

Buffer = bytes | memoryview

UNSENDABLE: Final = (TypeError, ValueError, OverflowError, RecursionError)
"""What encoding raises for values, text, numbers and nesting that cannot travel."""


class MsgpackEncoder:
    """Encodes messages of any of this package's types. Not safe across threads."""

    def __init__(self) -> None:
        self._aux: list[memoryview] = []
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._hook)

    def encode(self, message: Any) -> list[Buffer]:
        """Return the frames of `message`: the body, then one frame per large buffer.

        numpy arrays and torch tensors anywhere in it travel as tensors. The later frames are
        views: keep their owners unchanged until they are sent.

        Raises:
            UnsendableError: the message holds something that could only be pickled.
            ValueError: an array's dtype, layout or device cannot travel.
        """
        free = _FREE_VALUES.get(type(message))
        if free is not None and (values := free(message)):
            refuse_extensions(values)
        return self._write(message)

    def _write(self, message: Any) -> list[Buffer]:
        aux: list[memoryview] = []
        self._aux = aux
        body = self._encoder.encode(message)
        if aux:
            self._aux = []  # so that nothing here keeps the buffers
        return [body, *aux]

    def _hook(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return pack(value, self._aux)
        parts = parts_of(value)
        if parts is not None:
            return pack(Tensor(*parts), self._aux)
        raise UnsendableError(f"{type(value).__qualname__} cannot be sent: only plain data travels")


class MsgpackDecoder(Generic[T]):
    """Decodes messages of one type. Not safe across threads."""

    def __init__(self, message_type: type[T]) -> None:
        self._aux: list[memoryview] = []
        self._decoder = msgspec.msgpack.Decoder(
            message_type, dec_hook=self._hook, ext_hook=read_extension
        )

    def decode(self, body: Buffer, aux: Sequence[Buffer] = ()) -> T:
        """Return the message in `body`, whose large buffers came in the frames `aux`.

        Tensors are views of these frames and of the body; nothing is copied.

        Raises:
            msgspec.DecodeError: `body` is no msgpack.
            msgspec.ValidationError: it is not a message of this type; the text names
                the path of the offending item.
            ExtensionError: it carries what only an unpickler could read.
        """
        if aux:
            self._aux = [memoryview(frame) for frame in aux]
        try:
            return self._decoder.decode(body)
        except RecursionError:
            raise msgspec.DecodeError("message is nested too deeply") from None
        finally:
            if aux:
                self._aux = []  # so that nothing here keeps the buffers

    def _hook(self, wanted: type, value: Any) -> Any:
        return _UNPACK[wanted](value, self._aux)


_UNPACK: Final[dict[Any, Callable[[Any, list[memoryview]], Any]]] = {
    Tensor: unpack,
    NestedTensors: unpack_nested,
}


def free_values(request: EngineCoreRequest) -> list[Any]:
    """Return what a request has in fields that take any value."""
    sampling, pooling, hints = request.sampling_params, request.pooling_params, request.kv_hints
    values: list[Any] = []
    if request.reasoning_parser_kwargs:
        values.append(request.reasoning_parser_kwargs)
    if sampling is not None and sampling.extra_args:
        values.append(sampling.extra_args)
    if sampling is not None and sampling.structured_outputs is not None:
        values.append(sampling.structured_outputs.json)
    if pooling is not None and pooling.extra_kwargs:
        values.append(pooling.extra_kwargs)
    if hints is not None:
        values += [action.payload for action in hints.actions]
    return values


_FREE_VALUES: Final[dict[type, Callable[[Any], Any]]] = {
    EngineCoreRequest: free_values,
    UtilityCall: lambda call: call.args,
    list: lambda values: values,
    dict: lambda values: values,
    tuple: lambda values: values,
}
"""The parts of a message whose types say nothing about them: there msgspec would write a
ready-made extension value without asking."""
