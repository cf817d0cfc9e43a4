"""InprocClient: ClientCore and an engine in this process, without sockets or threads."""

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

from enginecore_client._addresses.sources import StaticSource
from enginecore_client._core.books import Ids, RequestRecord
from enginecore_client._core.core import ClientCore, CoreSettings
from enginecore_client._core.spans import seconds_of
from enginecore_client._core.states import Channel
from enginecore_client._faces.face import EngineCoreClient, make_metrics
from enginecore_client._faces.options import check_ids, check_kinds
from enginecore_client._faces.sequences import TextTokenizer, build_request
from enginecore_client._faces.streams import SyncStream
from enginecore_client._shell.driver import Driver
from enginecore_client._shell.local import (
    LOCAL_ADDRESSES,
    InprocResources,
    LocalEngine,
    LocalTransport,
    ready_of,
)
from enginecore_client._shell.mailbox import StepMailbox, ThreadMailbox
from enginecore_client._sockets.resources import HostUnreachableError
from enginecore_client.errors import ClientClosedError, RequestRejectedError
from enginecore_client.ops import Op, checked, combine
from enginecore_wire.engine import EngineLike
from enginecore_wire.outputs import EngineCoreOutputs
from enginecore_wire.requests import EngineCoreRequest, SamplingParams

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

R = TypeVar("R")

_WAITS: Final = {"pause_scheduler": 0, "sleep": 1}
"""Calls that end when the engine is idle if their argument at this place is "wait"."""


class InprocClient(EngineCoreClient):
    """Client of an engine in this process.

    Nothing runs by itself: `get_output` computes one step, and so does the reader of a stream
    that has no output waiting. Any thread may call any method; one at a time is served.

    Args:
        engine: the engine, such as enginecore_torch's EngineCore, or a function that makes it. It
            belongs to the client from now on and is shut down with it.
        model_name: the label of the metrics.
        registry: a prometheus_client registry for metrics; None for none.
        tokenizer: gives outputs of `generate` their text and finds stop strings; see MPClient.

    Raises:
        RequestRejectedError: an option is wrong; `field` names it.
    """

    def __init__(
        self,
        engine: EngineLike | Callable[[], EngineLike],
        *,
        model_name: str = "",
        registry: "CollectorRegistry | None" = None,
        tokenizer: TextTokenizer | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._local = LocalEngine(engine_of(engine))
        self.resources = resources = InprocResources()
        self.outputs_queue: ThreadMailbox[Any] = ThreadMailbox()
        self._finalizer = weakref.finalize(self, resources)
        try:
            check_kinds(model_name=model_name, registry=registry, tokenizer=tokenizer)
            assert self._local.engine is not None
            transport = LocalTransport(self._local, ready_of(self._local.engine, model_name))
            core = ClientCore(CoreSettings(), Ids(), time.time, time.monotonic(), transport)
            local = self._local
            self._driver = resources.driver = Driver(
                core, StaticSource(LOCAL_ADDRESSES), make_metrics(registry), self.outputs_queue,
                resources, resources.post, make_sockets=lambda _watcher, _callbacks: local,
            )  # fmt: skip
            self._driver.start()
            self._driver.tick()
        except BaseException:
            self._finalizer()
            self._local.close_all()
            raise

    def __enter__(self) -> "InprocClient":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def engine_core(self) -> EngineLike:
        """Return the engine.

        Raises:
            ClientClosedError: the client was closed, and the engine with it.
        """
        if self._local.engine is None:
            raise ClientClosedError("the client is closed; create another one")
        return self._local.engine

    @property
    def engine_dead(self) -> bool:
        """Whether the engine broke."""
        return self.resources.engine_dead

    def close(self) -> None:
        """Close the client and shut its engine down: what is unfinished ends. Idempotent."""
        self._finalizer()

    def shutdown(self, timeout: float | None = None) -> None:
        """Close the client; see EngineCoreClient. Nothing runs that could need time."""
        if timeout is not None:
            seconds_of("timeout", timeout)
        self.close()

    def generate(
        self,
        prompt_token_ids: Sequence[int] | EngineCoreRequest,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        deadline: float | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> SyncStream:
        """Give the engine one request and return the stream of its outputs.

        Args:
            prompt_token_ids: the prompt, or a whole request (then no other field beside it).
            sampling_params: how to sample; by default 16 tokens as they come.
            request_id: the caller's name for it; random if None.
            deadline: seconds from now after which it ends with RequestTimeoutError.
            trace_headers: trace context for the engine's tracer.

        Raises:
            RequestRejectedError: a field is wrong, or the engine cannot do what it asks.
            EngineDeadError: the engine broke.
        """
        request = build_request(prompt_token_ids, sampling_params, request_id, None, trace_headers)
        stream = SyncStream(
            request, self._tokenizer, self._abort_record, self._driver.drop_record,
            StepMailbox(self._step),
        )  # fmt: skip
        with self.resources.lock:
            stream.start(lambda each, sink: self._add(each, sink, deadline))
        return stream

    def add_request(self, request: EngineCoreRequest) -> None:
        """Give the engine a request whose outputs get_output returns; raises as `generate`."""
        self._add(request, None, None)

    def abort_requests(self, request_ids: Sequence[str]) -> list[str]:
        """End requests and return the ids of those that had not ended; see EngineCoreClient."""
        check_ids(request_ids)
        with self.resources.lock:
            self._begin()
            return self._driver.abort(request_ids)

    def get_output(self) -> EngineCoreOutputs:
        """Compute one step and return its outputs of requests added by add_request.

        They are empty when there was nothing to compute, or only for streams.

        Raises:
            EngineDeadError: the engine broke; its cause says how.
            EngineCoreError: requests ended with an error; `request_ids` names them.
            ClientClosedError: the client is closed.
        """
        item: Any = EngineCoreOutputs()
        with self.resources.lock:
            self._begin()
            if not self.outputs_queue:
                self._step()
            if self.outputs_queue:
                item = self.outputs_queue.get(0)
            elif self.engine_dead:
                item = self._driver.core.nobody()
                item.__cause__ = self._local.failure
        if isinstance(item, BaseException):
            raise item
        outputs: EngineCoreOutputs = item
        return outputs

    def call(self, op: Op[R], *, engine: int | None = None) -> R:
        """Run a control operation on the engine.

        Raises:
            RequestRejectedError: an argument is wrong.
            UtilityError: the engine says that it failed.
        """
        return checked(op).result([self._call(op.utility, op.arguments(), engine)])

    def call_utility(self, method: str, *args: Any, engine: int | None = None) -> Any:
        """Call the engine's method by name; see `call`."""
        return combine(method, [self._call(method, args, engine)])

    def _call(self, method: str, args: Sequence[Any], engine: int | None) -> Any:
        core = self._driver.core
        with self.resources.lock:
            self._begin()
            (link,) = core.calls.targets(engine, self._driver.clock())
            call = core.calls.send(link, method, args, Future(), None)
            self._driver.pump()
            self._driver.drain(link)  # the engine answers while it is asked
            place = _WAITS.get(method)
            if place is not None and args[place : place + 1] == ["wait"]:
                while self._step():
                    pass
        return call.future.result(0)

    def _add(self, request: EngineCoreRequest, sink: Any, timeout: float | None) -> RequestRecord:
        local = self._local
        with self.resources.lock:
            self._begin()
            record = self._driver.add(request, sink, timeout, retry=False)
            refusal, local.refusal = local.refusal, None
            if refusal is not None:
                self._driver.abort_record(record)
                raise refusal
        return record

    def _abort_record(self, record: RequestRecord) -> None:
        with self.resources.lock:
            self._driver.abort_record(record)

    def _step(self) -> bool:
        """Compute one step; say whether there was anything to compute."""
        driver, local = self._driver, self._local
        with self.resources.lock:
            self.resources.catch_up()
            driver.tick()
            if not local.has_work or local.link is None:
                return False
            now = driver.clock
            try:
                message = local.step()
            except HostUnreachableError:
                driver.core.links.disconnected(local.link, Channel.OUTPUT, now())
            else:
                if message is not None and local.link is not None:  # a step may close the client
                    driver.core.links.take_outputs(local.link, message, now())
            driver.pump()
        return True

    def _begin(self) -> None:
        self._driver.check_process()
        if not self._finalizer.alive:
            raise ClientClosedError("the client is closed; create another one")
        self.resources.catch_up()


def engine_of(engine: EngineLike | Callable[[], EngineLike]) -> EngineLike:
    """Return the engine, or the one that a function makes.

    Raises:
        RequestRejectedError: it is neither.
    """
    made: Any = engine() if callable(engine) else engine
    missing = [name for name in _ENGINE_NAMES if not hasattr(made, name)]
    if missing:
        raise RequestRejectedError(
            f"engine: {type(made).__name__} is no engine, it has no {missing[0]}; give an "
            "EngineCore, or a function that makes one",
            field="engine",
        )
    found: EngineLike = made
    return found


_ENGINE_NAMES: Final = (
    "limits", "add_request", "abort_requests", "step", "has_work", "call", "shutdown",
)  # fmt: skip
