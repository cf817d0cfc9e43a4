"""Every decoder of the wire, as a function of the frames that came.

A target returns, or raises msgspec.DecodeError: one message is lost and nothing else. Anything
else it raises is a finding. What decodes is also put to use the way its receivers do it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from enginecore_wire.arrays import TORCH_NAMES
from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.coordination import FirstRequest, LoadReport
from enginecore_wire.dialects import Dialect
from enginecore_wire.frames import control_type, decode_control, encode_control
from enginecore_wire.handshake import EngineInit, EngineStatus, ReadyPayload
from enginecore_wire.layouts import FIRST
from enginecore_wire.outputs import EngineCoreOutputs
from enginecore_wire.positions import LORA, OUTPUT
from enginecore_wire.problems import RequestLimits
from enginecore_wire.requests import EngineCoreRequest, UtilityCall
from enginecore_wire.tensors import Tensor
from enginecore_wire.translation import outputs_decoder, request_decoder, request_encoder
from enginecore_wire.validation import check_request, checked_decoder, decode_problem

Frames = Sequence[bytes]
Target = Callable[[Frames], None]

VOCAB_SIZE = 1000
LIMITS = RequestLimits(
    vocab_size=VOCAB_SIZE, max_model_len=500, hidden_size=4, supports_lora=True, max_logprobs=-1,
    tasks=frozenset({"generate", "embed"}),
)  # fmt: skip


def _outputs(dialect: Dialect) -> Target:
    decoder = outputs_decoder(dialect)

    def target(frames: Frames) -> None:
        message = decoder.decode(frames[0], frames[1:])
        for output in message.outputs:
            for tensor in _tensors(output):
                _read(tensor)
        _encode_again(message, MsgpackDecoder(EngineCoreOutputs))

    return target


def _requests(dialect: Dialect) -> Target:
    decoder, encoder = request_decoder(dialect, VOCAB_SIZE), request_encoder(dialect)

    def target(frames: Frames) -> None:
        request = decoder.decode(frames[0], frames[1:])
        encoder.encode(request)
        check_request(request, LIMITS, tokens_checked=True)
        _encode_again(request, MsgpackDecoder(EngineCoreRequest))

    return target


_CHECKED = checked_decoder(VOCAB_SIZE)


def _checked(frames: Frames) -> None:
    try:
        request = _CHECKED.decode(frames[0], frames[1:])
    except msgspec.DecodeError as error:
        problem = decode_problem(error, frames[0])
    else:
        check = check_request(request, LIMITS, tokens_checked=True)
        if check is None:
            return
        problem = check
    assert problem.message.startswith(problem.field)


def _control(frames: Frames) -> None:
    control_type(frames[0])
    message = decode_control(frames)
    if message is not None:
        again = encode_control(message)
        assert encode_control(decode_control(again)) == again  # type: ignore[arg-type]


def _plain(kind: Any) -> Target:
    decoder: MsgpackDecoder[Any] = MsgpackDecoder(kind)

    def target(frames: Frames) -> None:
        _encode_again(decoder.decode(frames[0], frames[1:]), decoder)

    return target


def _arrays(frames: Frames) -> None:
    for tensor in MsgpackDecoder(list[Tensor]).decode(frames[0], frames[1:]):
        _read(tensor)


def _tensors(node: Any) -> list[Tensor]:
    if isinstance(node, Tensor):
        return [node]
    if isinstance(node, msgspec.Struct):
        return [
            tensor for name in node.__struct_fields__ for tensor in _tensors(getattr(node, name))
        ]
    return []


def _read(tensor: Tensor) -> None:
    repr(tensor)
    assert tensor.torch().shape == tensor.shape
    if tensor.with_numpy_dtype().dtype in TORCH_NAMES:
        assert tensor.numpy().shape == tensor.shape
        if tensor.numpy().dtype.kind != "c":
            tensor.tolist()


def _encode_again(message: Any, decoder: MsgpackDecoder[Any]) -> None:
    """Whatever decodes is written as something that decodes to the same."""
    frames = MsgpackEncoder().encode(message)
    again = MsgpackEncoder().encode(decoder.decode(frames[0], frames[1:]))
    assert list(map(bytes, again)) == list(map(bytes, frames))


TARGETS: dict[str, Target] = {
    "outputs": _outputs(Dialect((0, 32))),
    **{f"outputs {a}.{b}": _outputs(Dialect((a, b))) for a, b in OUTPUT},
    "request, checked": _checked,
    **{f"request {a}.{b}": _requests(Dialect((a, b))) for a, b in sorted({*FIRST.values(), *LORA})},
    "control": _control,
    "ids": _plain(list[str]),
    **{
        kind.__name__: _plain(kind)
        for kind in (UtilityCall, EngineStatus, EngineInit, ReadyPayload, LoadReport, FirstRequest)
    },
    "arrays": _arrays,
    "anything": _plain(Any),
}
"""Every decoder, by name."""
