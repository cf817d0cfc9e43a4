"""EngineCoreProc: an EngineCore as a process that speaks vLLM's native protocol."""

import logging
import signal
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import msgspec
import zmq

from enginecore_torch.admission import DuplicateRequestError
from enginecore_torch.build import BuiltEngine
from enginecore_torch.config import ProcessConfig
from enginecore_torch.core import CoreOptions, EngineCore
from enginecore_torch.links import (
    COORDINATOR,
    SIGNAL_SECONDS,
    Handshake,
    Incoming,
    InputThread,
    OutputThread,
)
from enginecore_torch.version import VERSION
from enginecore_wire.codec import MsgpackDecoder
from enginecore_wire.handshake import EngineAddresses, ReadyPayload
from enginecore_wire.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    UtilityOutput,
    UtilityResult,
)
from enginecore_wire.requests import EngineCoreRequest, RequestType, UtilityCall

CLOSE_SECONDS = 5.0
"""How long the end of the process waits for outputs to leave."""

STOPPING = "Server shutting down"
"""vLLM's answer to calls that come, or still wait for running requests, when it ends."""

_LOG = logging.getLogger(__name__)


class _Wake(NamedTuple):
    """Something for the loop to look at that is not a message."""


class EngineCoreProc:
    """Runs the handshake, then steps the engine and answers messages until told to stop."""

    def __init__(
        self,
        config: ProcessConfig,
        build: Callable[[CoreOptions], BuiltEngine],
        clock: Callable[[], float],
        instance_id: str,
    ) -> None:
        """Prepare; nothing is opened before `run`.

        Args:
            config: who this engine is and where to dial.
            build: makes the engine, once the handshake has said for whom.
            clock: monotonic seconds.
            instance_id: tells this process from all others.
        """
        self._config = config
        self._build = build
        self._clock = clock
        self._instance_id = instance_id
        self._queue: SimpleQueue[Incoming | _Wake] = SimpleQueue()
        self._serving = False
        self._stopping = False
        self._deadline: float | None = None
        self._drain_replies: list[UtilityCall] = []
        self._load = (0, 0)
        self._add = MsgpackDecoder(EngineCoreRequest)
        self._abort = msgspec.msgpack.Decoder(list[str])
        self._utility = MsgpackDecoder(UtilityCall)

    def stop(self) -> None:
        """Ask the loop to end; may be called from a signal handler.

        Raises:
            SystemExit: the engine is not ready yet, so there is nothing to end in order.
        """
        if not self._serving:
            raise SystemExit(0)
        self._stopping = True
        self._queue.put(_Wake())

    def run(self) -> int:
        """Serve until stopped; return the exit code: 0 after `stop`, 1 if the engine broke.

        Raises:
            HandshakeError: nobody answered, or not as they should.
            Exception: whatever kept the engine from being built.
        """
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        endpoint = f"tcp://{_bracketed(self._config.address)}:{self._config.port}"
        try:
            with Handshake(context, endpoint, self._config.rank, self._config.local) as handshake:
                addresses = handshake.begin(self._config.handshake_timeout)
                built = self._build(
                    CoreOptions(self._config.rank, addresses.coordinator_output is not None)
                )
                self._serving = True
                outputs = OutputThread(context, addresses)
                InputThread(
                    context, addresses, self._config.rank, self._ready(built, addresses),
                    self._queue.put,
                )  # fmt: skip
                handshake.finish()
            return self._serve(built.core, outputs)
        finally:
            context.term()

    def _serve(self, core: EngineCore, outputs: OutputThread) -> int:
        dead = True
        try:
            self._loop(core, outputs)
            dead = False
        except Exception:  # noqa: BLE001 - whatever it was, clients are told
            _LOG.exception("the engine broke")
        finally:
            outputs.close(dead, CLOSE_SECONDS)
        return int(dead)

    def _loop(self, core: EngineCore, outputs: OutputThread) -> None:
        while not self._is_over(core, outputs):
            self._take_messages(core, outputs)
            self._report_load(core, outputs)
            for client, message in core.step().items():
                outputs.put(client, message)
            self._reply_drained(core, outputs)
            self._report_load(core, outputs)
        self._take_messages(core, outputs)
        for call in self._drain_replies:
            self._reply(call, UtilityOutput(call.call_id, STOPPING), outputs)

    def _is_over(self, core: EngineCore, outputs: OutputThread) -> bool:
        """Say whether to end; begins the end when `stop` was called."""
        if not self._stopping:
            return False
        if self._deadline is None:
            self._deadline = self._clock() + self._config.shutdown_timeout
            _LOG.info("stopping; requests have %g s", self._config.shutdown_timeout)
        if core.has_work() and self._clock() < self._deadline:
            return False
        core.shutdown()
        for client, message in core.step().items():
            outputs.put(client, message)
        return True

    def _take_messages(self, core: EngineCore, outputs: OutputThread) -> None:
        """Handle all messages that are there; wait a while for one if there is nothing to do."""
        block = not core.has_work() and not self._stopping
        while True:
            try:
                item = self._queue.get(block, SIGNAL_SECONDS)
            except Empty:
                return
            block = False
            if isinstance(item, Incoming):
                self._handle(item, core, outputs)

    def _handle(self, message: Incoming, core: EngineCore, outputs: OutputThread) -> None:
        """Act on one message; whatever is wrong with it harms nothing else."""
        try:
            if message.kind == RequestType.ADD:
                self._handle_add(message, core, outputs)
            elif message.kind == RequestType.ABORT:
                core.abort_requests(self._abort.decode(message.body))
            elif message.kind == RequestType.UTILITY:
                call = self._utility.decode(message.body, message.aux)
                self._handle_utility(call, core, outputs)
            elif message.kind != RequestType.START_DP_WAVE:
                _LOG.error("message of unknown type %s ignored", message.kind.hex())
        except msgspec.DecodeError as error:
            _LOG.error("message of type %s ignored: %s", message.kind.hex(), error)

    def _handle_add(self, message: Incoming, core: EngineCore, outputs: OutputThread) -> None:
        try:
            request = self._add.decode(message.body, message.aux)
        except msgspec.DecodeError as error:
            self._refuse(*_sender(message.body), str(error), outputs)
            return
        client, request_id = request.client_index, request.request_id
        if not 0 <= client < outputs.num_clients:
            _LOG.error("request %s ignored: client_index %d has no output", request_id, client)
        elif self._stopping:
            self._end(client, request_id, FinishReason.ABORT, outputs)
        else:
            try:
                core.add_request(request)
            except DuplicateRequestError as error:
                _LOG.error("request ignored: %s", error)
            except ValueError as error:
                self._refuse(client, request_id, str(error), outputs)

    def _refuse(
        self, client: int | None, request_id: str | None, reason: str, outputs: OutputThread
    ) -> None:
        _LOG.error("request %s refused: %s", request_id, reason)
        if request_id is not None and client is not None and 0 <= client < outputs.num_clients:
            self._end(client, request_id, FinishReason.ERROR, outputs)

    def _end(
        self, client: int, request_id: str, reason: FinishReason, outputs: OutputThread
    ) -> None:
        output = EngineCoreOutput(request_id, [], finish_reason=reason)
        finished = [request_id] if outputs.has_coordinator else None
        outputs.put(
            client,
            EngineCoreOutputs(
                self._config.rank, [output], timestamp=self._clock(), finished_requests=finished
            ),
        )

    def _handle_utility(self, call: UtilityCall, core: EngineCore, outputs: OutputThread) -> None:
        if not 0 <= call.client_index < outputs.num_clients:
            _LOG.error(
                "call of %s ignored: client_index %d has no output", call.method, call.client_index
            )
            return
        if self._stopping:
            self._reply(call, UtilityOutput(call.call_id, STOPPING), outputs)
            return
        try:
            value = core.call(call.method, call.args)
        except ValueError as error:
            text = f"Call to {call.method} method failed: {error}"
            self._reply(call, UtilityOutput(call.call_id, text), outputs)
            return
        if (
            call.method in ("pause_scheduler", "sleep")
            and core.num_in_service
            and "wait" in call.args
        ):
            self._drain_replies.append(call)
            return
        self._reply(call, _result(call, value), outputs)

    def _reply(self, call: UtilityCall, output: UtilityOutput, outputs: OutputThread) -> None:
        outputs.put(
            call.client_index,
            EngineCoreOutputs(self._config.rank, timestamp=self._clock(), utility_output=output),
        )

    def _reply_drained(self, core: EngineCore, outputs: OutputThread) -> None:
        """Answer the calls that wait for the requests in service to end."""
        if self._drain_replies and not core.num_in_service:
            calls, self._drain_replies = self._drain_replies, []
            for call in calls:
                self._reply(call, _result(call, None), outputs)

    def _report_load(self, core: EngineCore, outputs: OutputThread) -> None:
        """Tell the coordinator, if there is one, when counts have changed."""
        if outputs.has_coordinator and core.load != self._load:
            self._load = core.load
            outputs.put(
                COORDINATOR,
                EngineCoreOutputs(
                    self._config.rank, scheduler_stats=core.gauges(), timestamp=self._clock()
                ),
            )

    def _ready(self, built: BuiltEngine, addresses: EngineAddresses) -> ReadyPayload:
        facts = built.facts
        return ReadyPayload(
            max_model_len=facts.max_model_len,
            num_gpu_blocks=facts.num_blocks,
            block_size=facts.block_size,
            dp_stats_address=addresses.frontend_stats_publish_address,
            dtype=facts.dtype,
            vllm_version=f"enginecore-torch-{VERSION}",
            world_size=1,
            data_parallel_size=self._config.data_parallel_size,
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            data_parallel_rank=self._config.rank,
            max_num_seqs=facts.max_num_seqs,
            max_num_batched_tokens=facts.max_num_batched_tokens,
            instance_id=self._instance_id,
            supports_lora=False,
            max_loras=0,
            kv_cache_size_tokens=(facts.num_blocks - 1) * facts.block_size,
        )


def install_stop_signals(proc: EngineCoreProc) -> None:
    """Let SIGTERM and SIGINT stop `proc`."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: proc.stop())


def _sender(body: bytes) -> tuple[int | None, str | None]:
    """Return client index and request id of an ADD that does not decode, as far as legible."""
    try:
        items: Any = msgspec.msgpack.decode(body, ext_hook=lambda *_: None)
    except (msgspec.DecodeError, RecursionError):
        return None, None
    if not isinstance(items, list) or not items or not isinstance(items[0], str):
        return None, None
    client = items[11] if len(items) > 11 else 0
    return (client if type(client) is int else None), items[0]


def _result(call: UtilityCall, value: Any) -> UtilityOutput:
    return UtilityOutput(call.call_id, None, UtilityResult(None, value))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
