"""Which client messages may reach the engine, and with which body. Pure decisions.

The engine trusts whatever it reads (docs/protocol.md: "A refused message harms nothing but
itself; the engine never sees it"), so every message is decoded here by its type first.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import msgspec

from enginecore_server.adapters import AdapterBook
from enginecore_server.arrays import with_item
from enginecore_wire.calls import check_call
from enginecore_wire.codec import MsgpackDecoder
from enginecore_wire.control import Limits, Phase, Reject, RejectCode
from enginecore_wire.dialects import NATIVE, Dialect
from enginecore_wire.problems import FieldProblem, RequestLimits
from enginecore_wire.prompt_rules import prompt_length
from enginecore_wire.requests import UtilityCall
from enginecore_wire.utility import UTILITY_METHODS, Role
from enginecore_wire.validation import check_request, checked_decoder, decode_problem

Buffer = bytes | memoryview

MAX_AUX_FRAMES: Final = 1024
BODY_BYTES: Final = 4 << 20
TOKEN_BYTES: Final = 9
"""A body may have BODY_BYTES and TOKEN_BYTES per token of the context: no request that engines
take needs more, and reading a larger one would keep all other clients waiting."""

MAX_ABORT_IDS: Final = 1 << 16
"""Ids of one ABORT, unless `limits.in_flight` is larger."""

_BEFORE_CLIENT_INDEX: Final = (None, None)
_MAX_CALL_ID: Final = 2**64 - 1


class Add(msgspec.Struct, frozen=True):
    """A request that may go on. `body` is None when the client's own bytes do."""

    request_id: str
    prompt_tokens: int
    body: bytes | None


class Call(msgspec.Struct, frozen=True):
    """A utility call that may go on. `body` is None when the client's own bytes do."""

    call_id: int
    method: str
    args: list[Any]
    body: bytes | None


class _RequestName(msgspec.Struct, array_like=True):
    request_id: str


class _CallName(msgspec.Struct, array_like=True):
    client_index: Any
    call_id: int


class Admission:
    """Checks messages of clients once the engine is ready.

    Args:
        model: what the engine can take.
        limits: what the pod accepts per client.
        in_use: says whether a request id is unfinished or still being aborted.
        adapters: what the engine has loaded.
        dialect: how clients must write their messages for the engine.
    """

    def __init__(
        self,
        model: RequestLimits,
        limits: Limits,
        in_use: Callable[[str], bool],
        adapters: AdapterBook,
        dialect: Dialect = NATIVE,
    ) -> None:
        self._model = model
        self._limits = limits
        self._in_use = in_use
        self._adapters = adapters
        self._dialect = dialect
        self._add = checked_decoder(model.vocab_size, dialect)
        self._call = MsgpackDecoder(UtilityCall)
        self._body_bytes = BODY_BYTES + TOKEN_BYTES * model.max_model_len
        longest = max(MAX_ABORT_IDS, limits.in_flight)
        self._ids = msgspec.msgpack.Decoder(Annotated[list[str], msgspec.Meta(max_length=longest)])

    def add(
        self,
        body: Buffer,
        aux: Sequence[Buffer],
        slot: int,
        unfinished: int,
        total: int,
        phase: Phase,
    ) -> Add | Reject:
        """Judge an ADD of the client in `slot` that has `unfinished` of the pod's `total`
        requests already."""
        refused = None if phase is Phase.READY else closed(phase)
        refused = refused or self._sizes(body, aux) or self._full(unfinished, total)
        if refused is not None:
            return msgspec.structs.replace(refused, request_id=request_id_of(body))
        try:
            request = self._add.decode(body, aux)
        except (msgspec.DecodeError, ValueError) as error:
            return _refuse(self._problem(error, body), request_id=request_id_of(body))
        problem = check_request(request, self._model, tokens_checked=True)
        problem = problem or self._adapters.check(request.lora_request)
        if problem is not None:
            return _refuse(problem, request_id=request.request_id)
        if self._in_use(request.request_id):
            return _reject(
                RejectCode.DUPLICATE_REQUEST_ID,
                "request_id: an unfinished request has this id; choose a new one",
                "request_id",
                request_id=request.request_id,
            )
        patched = None
        if request.client_index != slot:
            place = self._dialect.client_index
            patched = with_item(body, place, slot, _BEFORE_CLIENT_INDEX)
        return Add(request.request_id, prompt_length(request), patched)

    def utility(
        self, body: Buffer, aux: Sequence[Buffer], slot: int, calls: set[int], role: Role
    ) -> Call | Reject:
        """Judge a UTILITY of the client in `slot` with the unanswered `calls`."""
        refused = self._sizes(body, aux)
        if refused is None and len(calls) >= self._limits.in_flight:
            refused = _reject(
                RejectCode.OVERLOADED, f"{len(calls)} calls are unanswered; wait for one"
            )
        if refused is not None:
            return msgspec.structs.replace(refused, call_id=call_id_of(body))
        try:
            call = self._call.decode(body, aux)
        except (msgspec.DecodeError, ValueError) as error:
            return _reject(
                RejectCode.INVALID_REQUEST, f"utility call: {error}", call_id=call_id_of(body)
            )
        problem = self._judge_call(call, calls, role)
        if problem is not None:
            return problem
        patched = with_item(body, 0, slot) if call.client_index != slot else None
        return Call(call.call_id, call.method, call.args, patched)

    def abort(self, body: Buffer) -> list[str] | Reject:
        """Return the ids of an ABORT."""
        refused = self._sizes(body, ())
        if refused is not None:
            return refused
        try:
            return self._ids.decode(body)
        except msgspec.DecodeError as error:
            return _reject(RejectCode.INVALID_REQUEST, f"abort: {error}; send an array of ids")

    def _judge_call(self, call: UtilityCall, calls: set[int], role: Role) -> Reject | None:
        call_id = call.call_id
        if not 0 <= call_id <= _MAX_CALL_ID:
            return _reject(
                RejectCode.INVALID_REQUEST,
                f"call_id: got {call_id}, allowed: 0 to 2^64 - 1",
                "call_id",
            )
        method = UTILITY_METHODS.get(call.method)
        if method is not None and method.role is Role.ADMIN and role is not Role.ADMIN:
            return _reject(
                RejectCode.NOT_PERMITTED,
                f"method: {method.name} concerns the whole engine and needs the admin role",
                "method",
                call_id=call_id,
            )
        problem = check_call(call.method, call.args)
        if problem is not None:
            return _reject(problem.code, problem.message, problem.field, call_id=call_id)
        if call_id in calls:
            return _reject(
                RejectCode.INVALID_REQUEST,
                f"call_id: {call_id} is that of an unanswered call; choose a new one",
                "call_id",
                call_id=call_id,
            )
        return None

    def _problem(self, error: Exception, body: Buffer) -> FieldProblem:
        if isinstance(error, msgspec.DecodeError):
            return decode_problem(error, body, self._dialect)
        return FieldProblem("", f"request: {error}", RejectCode.INVALID_REQUEST)

    def _full(self, unfinished: int, total: int) -> Reject | None:
        if unfinished >= self._limits.in_flight:
            count, whose = unfinished, "per client"
        elif total >= self._limits.in_flight_total:
            count, whose = total, "for all clients"
        else:
            return None
        return _reject(
            RejectCode.OVERLOADED,
            f"{count} requests are unfinished, which is this pod's limit {whose}; "
            "wait for one or use another engine",
        )

    def _sizes(self, body: Buffer, aux: Sequence[Buffer]) -> Reject | None:
        limit = self._limits.frame_bytes
        if len(body) > min(limit, self._body_bytes):
            return _reject(
                RejectCode.TOO_LARGE,
                f"body: {len(body)} bytes, allowed: {min(limit, self._body_bytes)} "
                "(limits.frame_bytes and the length of the context)",
            )
        if len(aux) > MAX_AUX_FRAMES:
            return _reject(
                RejectCode.TOO_LARGE, f"{len(aux)} frames, allowed: {MAX_AUX_FRAMES} after the body"
            )
        for index, frame in enumerate(aux):
            if len(frame) > limit:
                return _reject(
                    RejectCode.TOO_LARGE,
                    f"frame {index + 1}: {len(frame)} bytes, allowed: {limit} (limits.frame_bytes)",
                )
        return None


def closed(phase: Phase, request_id: str | None = None, call_id: int | None = None) -> Reject:
    """Return the refusal of a request or call in a phase that takes none."""
    if phase is Phase.DRAINING:
        code, message = (
            RejectCode.DRAINING,
            "this pod takes no new requests; send them to another engine",
        )
    else:
        code, message = RejectCode.NOT_READY, f"the engine is {phase}; wait for READY"
    return _reject(code, message, request_id=request_id, call_id=call_id)


def unknown_type(kind: bytes) -> Reject:
    """Return the refusal of a message whose type byte no client may send."""
    return _reject(
        RejectCode.UNKNOWN_TYPE, f"message type {kind[:8].hex() or 'empty'} is not known here"
    )


def incomplete(kind: bytes) -> Reject:
    """Return the refusal of a message without a body."""
    return _reject(RejectCode.INVALID_REQUEST, f"message type {kind.hex()} came without a body")


def request_id_of(body: Buffer) -> str | None:
    """Return the request id in an ADD body that may be broken elsewhere, or None."""
    try:
        return msgspec.msgpack.decode(body, type=_RequestName).request_id
    except (msgspec.DecodeError, RecursionError):
        return None


def call_id_of(body: Buffer) -> int | None:
    """Return the call id in a UTILITY body that may be broken elsewhere, or None."""
    try:
        return msgspec.msgpack.decode(body, type=_CallName).call_id
    except (msgspec.DecodeError, RecursionError):
        return None


def _refuse(problem: FieldProblem, request_id: str | None) -> Reject:
    return _reject(problem.code, problem.message, problem.field, request_id=request_id)


def _reject(
    code: RejectCode,
    message: str,
    field: str = "",
    request_id: str | None = None,
    call_id: int | None = None,
) -> Reject:
    return Reject(code=code, message=message, field=field, request_id=request_id, call_id=call_id)
