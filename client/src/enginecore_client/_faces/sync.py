"""SyncMPClient: ClientCore and its sockets behind a reader thread."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar, Unpack

from enginecore_client._core.admission import deadline_after
from enginecore_client._core.books import RequestRecord
from enginecore_client._faces.mp import MPClient
from enginecore_client._faces.options import EngineOptions, check_ids, retry_of
from enginecore_client._faces.sequences import build_request
from enginecore_client._faces.streams import SyncStream
from enginecore_client._shell.driver import SWEEP_SECONDS
from enginecore_client._shell.engines import Addresses
from enginecore_client._shell.mailbox import ThreadMailbox
from enginecore_client._shell.thread import ThreadResources
from enginecore_client.errors import ClientClosedError, RequestTimeoutError
from enginecore_client.ops import Op, checked, combine
from enginecore_wire.outputs import EngineCoreOutputs
from enginecore_wire.requests import EngineCoreRequest, SamplingParams

R = TypeVar("R")


class SyncMPClient(MPClient[ThreadResources, ThreadMailbox[Any]]):
    """Client of EngineCores for threads: every method may be called from any thread.

    The constructor returns when every engine is ready, or `min_ready` of them.

    Args:
        client_addresses: where the engines are; see MPClient.
        options: see MPClient.

    Raises:
        AddressError: client_addresses are wrong, or the EngineCluster does not exist.
        RequestRejectedError: an option is wrong.
        StartupTimeoutError: an engine was not ready within `ready_timeout` seconds.
        ProtocolMismatchError: an engine refuses this client.
    """

    def __init__(
        self, client_addresses: Addresses | None = None, **options: Unpack[EngineOptions]
    ) -> None:
        super().__init__(ThreadResources, ThreadMailbox(), client_addresses, **options)
        self._driver.on_change = self.resources.changed.notify_all
        try:
            self.resources.start(self._driver)
            self._wait_ready()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "SyncMPClient":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def generate(
        self,
        prompt_token_ids: Sequence[int] | EngineCoreRequest,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        deadline: float | None = None,
        data_parallel_rank: int | None = None,
        retry: bool | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> SyncStream:
        """Send one request and return the stream of its outputs.

        Args:
            prompt_token_ids: the prompt, or a whole request (then no other field beside it).
            sampling_params: how to sample; by default 16 tokens as they come.
            request_id: the caller's name for it; random if None.
            deadline: seconds from now after which it ends with RequestTimeoutError.
            data_parallel_rank: the engine to use; None for the least loaded.
            retry: send it again as long as it has no token; None for the client's default.
            trace_headers: trace context (`traceparent`, `tracestate`) for the engine's tracer.

        Raises:
            RequestRejectedError: a field is wrong; nothing was sent.
            EngineNotReadyError, EngineDeadError, EngineDrainingError, OverloadedError:
                no engine takes it now.
        """
        request = build_request(
            prompt_token_ids, sampling_params, request_id, data_parallel_rank, trace_headers
        )
        driver, again = self._driver, retry_of(retry, self._retry)
        stream = SyncStream(request, self._tokenizer, self._abort_record, driver.drop_record)
        with self.resources.lock:
            stream.start(lambda each, sink: self._add(each, sink, deadline, retry=again))
        return stream

    def add_request(self, request: EngineCoreRequest) -> None:
        """Send a request whose outputs get_output returns; raises as `generate` does."""
        self._add(request, None, None, retry=self._retry)

    def abort_requests(self, request_ids: Sequence[str]) -> list[str]:
        """End requests and return the ids of those that had not ended; see EngineCoreClient."""
        check_ids(request_ids)
        self._driver.check_process()
        with self.resources.lock:
            self._check_open()
            ended = self._driver.core.requests.abort(request_ids)
            self.resources.wake()
        return ended

    def get_output(self, timeout: float | None = None) -> EngineCoreOutputs:
        """Return the next message with outputs of requests added by add_request.

        Raises:
            EngineDeadError: once for each engine that died; other engines go on.
            EngineCoreError: requests ended with an error; `request_ids` names them.
            RequestTimeoutError: nothing came within `timeout` seconds.
            ClientClosedError: the client was closed, or its reader thread failed.
        """
        self._driver.check_process()
        seconds = deadline_after(timeout, 0.0, "timeout")
        try:
            item = self.outputs_queue.get(seconds)
        except TimeoutError as error:
            raise RequestTimeoutError(f"no output came within {timeout} s") from error
        if isinstance(item, BaseException):
            raise item
        outputs: EngineCoreOutputs = item
        return outputs

    def scale_elastic_ep(self, new_data_parallel_size: int) -> None:
        """Set the number of engines; see EngineCoreClient."""
        self._scaler(new_data_parallel_size)(new_data_parallel_size)

    def call(self, op: Op[R], *, engine: int | None = None, timeout: float | None = None) -> R:
        """Run a control operation on one engine, or on all and combine their replies.

        Raises:
            UtilityError: an engine says that it failed, or engines disagree.
            RequestTimeoutError: no reply came within `timeout` seconds.
        """
        return checked(op).result(self._call(op.utility, op.arguments(), engine, timeout))

    def call_utility(
        self, method: str, *args: Any, engine: int | None = None, timeout: float | None = None
    ) -> Any:
        """Call an engine's method by name; see `call`."""
        return combine(method, self._call(method, args, engine, timeout))

    def _call(
        self, method: str, args: Sequence[Any], engine: int | None, timeout: float | None
    ) -> list[Any]:
        core = self._driver.core
        deadline = deadline_after(timeout, self._driver.clock(), "timeout")
        self._driver.check_process()
        self.resources.check_caller()
        with self.resources.lock:
            self._check_open()
            links = core.calls.targets(engine, self._driver.clock())
            calls = core.calls.send_all(links, method, args, Future, deadline)
            self.resources.wake()
        try:
            return [call.future.result() for call in calls]
        finally:
            with self.resources.lock:
                for call in calls:
                    core.calls.forget(call)

    def _add(
        self, request: EngineCoreRequest, sink: Any, timeout: float | None, *, retry: bool
    ) -> RequestRecord:
        now = self._driver.clock()
        deadline = deadline_after(timeout, now, "deadline")
        self._driver.check_process()
        with self.resources.lock:
            self._check_open()
            record = self._driver.core.requests.add(
                request, sink, now, deadline=deadline, retry=retry
            )
            self.resources.wake()
        return record

    def _abort_record(self, record: RequestRecord) -> None:
        if self._driver.forked:
            return
        with self.resources.lock:
            self._driver.core.requests.abort_record(record)
            self.resources.wake()

    def _wait_ready(self) -> None:
        clock = self._driver.clock
        end = clock() + self._ready_timeout
        with self.resources.lock:
            while not self._is_ready():
                left = end - clock()
                error = self._startup_error(expired=left <= 0)
                if error is not None:
                    raise error
                self.resources.changed.wait(min(left, SWEEP_SECONDS))
                self._check_open()

    def _check_open(self) -> None:
        failure = self.resources.failure
        if failure is not None:
            raise ClientClosedError(f"the reader thread failed: {failure!r}") from failure
        super()._check_open()
