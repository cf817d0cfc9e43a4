"""What the parts of one running server share."""

import itertools
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from enginecore_server.adapters import AdapterBook
from enginecore_server.admission import Admission
from enginecore_server.fences import FenceBook
from enginecore_server.load import EngineLoad
from enginecore_server.model_facts import ModelInputs
from enginecore_server.phases import PhaseLog
from enginecore_server.sessions import SessionBook
from enginecore_server.sleep import SleepBook
from enginecore_server.tally import Tally
from enginecore_wire.contract import EngineFacts, ServerConfig
from enginecore_wire.control import Limits
from enginecore_wire.dialects import NATIVE, Dialect, confirm, dialect_of
from enginecore_wire.handshake import ReadyPayload
from enginecore_wire.layouts import LayoutError
from enginecore_wire.problems import RequestLimits

T = TypeVar("T")


class ServerState:
    """The books of one server, for its one engine process.

    Args:
        config: the settings.
        model: what its requests are held to.
        first_call_id: where the server's own call ids start; random, so that no client hits
            them by chance.
    """

    def __init__(self, config: ServerConfig, model: ModelInputs, first_call_id: int) -> None:
        self.config = config
        self.model = model
        self.phases = PhaseLog(time.time, time.monotonic)
        self.book = SessionBook(config.transport.max_clients)
        self._call_ids = itertools.count(first_call_id)
        self.fences = FenceBook(self.next_call_id)
        self.own_calls: dict[int, Callable[[Any], None]] = {}
        self.tally = Tally()
        self.adapters = AdapterBook()
        self.sleep = SleepBook()
        self.load = EngineLoad()
        self.limits = config.limits
        self.ready_payload: dict[str, Any] | None = None
        self.tasks: frozenset[str] = frozenset()
        self.facts: EngineFacts | None = None
        declared = config.runtime.version
        self.dialect = dialect_of(declared) if declared else NATIVE
        self._admission: Admission | None = None

    @property
    def served_name(self) -> str:
        """The model's name in metrics."""
        return self.config.model.served_name or self.config.model.path

    @property
    def admission(self) -> Admission:
        """The checks of client messages; only once the engine is ready."""
        assert self._admission is not None
        return self._admission

    @property
    def in_flight(self) -> int:
        """Unfinished requests of all clients."""
        return len(self.book.requests)

    def next_call_id(self) -> int:
        """Return an id for a utility call of the server's own."""
        return next(self._call_ids) % 2**64

    def id_in_use(self, request_id: str) -> bool:
        """Say whether a request id may not be given to a new request."""
        return request_id in self.book.requests or self.fences.holds(request_id)

    def engine_ready(self, payload: bytes, tasks: list[str]) -> None:
        """Take what the engine said of itself.

        Raises:
            msgspec.DecodeError: its READY payload is not one.
        """
        facts = _decode(payload, ReadyPayload)
        if facts.max_model_len < 1:
            raise msgspec.ValidationError(
                f"max_model_len: got {facts.max_model_len}, allowed: at least 1"
            )
        self.dialect = _dialect(self.config.runtime.version, facts.vllm_version)
        self.ready_payload = _decode(payload, dict[str, Any])
        self.facts = EngineFacts(
            version=facts.vllm_version,
            dtype=facts.dtype,
            max_model_len=facts.max_model_len,
            num_gpu_blocks=facts.num_gpu_blocks,
            vocab_size=self.model.vocab_size,
        )
        self.tasks = frozenset(tasks) or frozenset({"generate"})
        longest = self.config.limits.prompt_tokens or facts.max_model_len
        self.limits = Limits(
            frame_bytes=self.config.limits.frame_bytes,
            in_flight=self.config.limits.in_flight,
            in_flight_total=self.config.limits.in_flight_total,
            prompt_tokens=min(longest, facts.max_model_len),
        )
        model = RequestLimits(
            vocab_size=self.model.vocab_size,
            max_model_len=facts.max_model_len,
            prompt_tokens=self.limits.prompt_tokens,
            supports_lora=facts.supports_lora,
            hidden_size=self.model.hidden_size,
            modalities=frozenset(self.model.modalities),
            max_logprobs=self.model.max_logprobs,
            tasks=self.tasks,
        )
        self._admission = Admission(model, self.limits, self.id_in_use, self.adapters, self.dialect)


def _dialect(declared: str, reported: str) -> Dialect:
    """Return how the engine writes its messages; the layout is that of `declared`, or C.

    Raises:
        msgspec.ValidationError: nobody says which release it is, or the two contradict.
    """
    if not declared and not reported:
        raise msgspec.ValidationError(
            "vllm_version: missing, so the engine is older than vLLM 0.23; "
            "name its release in runtime.version, or use an image of a newer one"
        )
    try:
        return confirm(declared, reported)
    except LayoutError as error:
        raise msgspec.ValidationError(f"vllm_version: {error}") from error


def _decode(payload: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None
