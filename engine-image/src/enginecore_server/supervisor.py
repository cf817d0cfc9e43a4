"""The engine's life as its server sees it: handshake, facts, and the ways it can end."""

import logging
import time
from collections.abc import Callable, Sequence

import msgspec
import zmq

from enginecore_server.child import EngineChild
from enginecore_server.engine_link import EngineLink, Rests
from enginecore_server.engine_processes import EngineProcesses
from enginecore_server.handshake import Handshake, HandshakeError, HandshakeStep
from enginecore_server.heads import UtilityHead
from enginecore_server.phases import STARTING_UP
from enginecore_server.processes import cpu_seconds, descendants
from enginecore_server.relay import OutputRelay
from enginecore_server.start_steps import StartSteps
from enginecore_server.state import ServerState
from enginecore_server.watchdog import StartWatch, StepWatch, Verdict
from enginecore_wire.control import Phase

_log = logging.getLogger(__name__)

TASKS_METHOD = "get_supported_tasks"
PAUSED_METHOD = "is_scheduler_paused"
_CPU_CHECK_SECONDS = 1.0


class EngineSupervisor:
    """Listens to the engine's sockets and process, and says when it is ready or dead.

    Args:
        state: the books; the phase is changed here.
        announce: called after every change of phase.
        failed: called with a reason (one word) and a sentence once the engine is lost.
    """

    def __init__(
        self,
        state: ServerState,
        announce: Callable[[], None],
        failed: Callable[[str, str], None],
    ) -> None:
        self._state = state
        self._announce = announce
        self._failed = failed
        self._link: EngineLink | None = None
        self._relay: OutputRelay | None = None
        self._handshake: Handshake | None = None
        self._payload: bytes | None = None
        self._asked = False
        self._processes = EngineProcesses(self._process_ended)
        liveness = state.config.liveness
        now = time.monotonic()
        self._start_watch = StartWatch(liveness.start_progress_deadline_seconds, now)
        self._start_steps = StartSteps()
        self._step_watch = StepWatch(liveness.step_deadline_seconds, now)
        self._cpu_checked = now

    def attach(self, link: EngineLink, relay: OutputRelay) -> None:
        """Give the supervisor the engine's sockets."""
        self._link, self._relay = link, relay
        self._handshake = Handshake(link.addresses)

    def close(self) -> None:
        """Stop watching processes, and listening to outputs: nobody is left to send them to."""
        self._relay = None
        self._processes.close()

    def handshake_message(self, identity: bytes, body: bytes) -> None:
        """Answer the engine's HELLO, note its READY."""
        assert self._handshake is not None
        assert self._link is not None
        try:
            answer = self._handshake.receive(identity, body)
        except HandshakeError as error:
            if self._handshake.step is HandshakeStep.READY:
                # Whoever reaches this host's loopback can say this: it ends no stream.
                _log.warning("a message on the handshake socket was ignored: %s", error)
            else:
                self._failed("HandshakeFailed", str(error))
            return
        self._start_watch.progress(time.monotonic())
        if answer is not None:
            self._link.answer_handshake(identity, answer)
            if self._state.phases.enter(Phase.LOADING, "EngineLoads"):
                self._announce()
        self._ask_when_loaded()

    def input_message(self, frames: Sequence[bytes]) -> None:
        """Note the READY payload."""
        if self._payload is None:
            self._payload = frames[0]
            self._start_watch.progress(time.monotonic())
            self._ask_when_loaded()

    def output_messages(self, firsts: list[zmq.Frame], rests: Rests, since: float) -> None:
        """Hand outputs to the relay."""
        if self._relay is not None:
            self._relay.output_messages(firsts, rests, since)

    def engine_connected(self, pid: int) -> None:
        """Watch the EngineCore process itself, and not only the launcher above it."""
        self._processes.watch_core(pid)

    def engine_disconnected(self) -> None:
        """A socket of the engine closed: it is gone, or as good as gone."""
        self._failed("EngineDisconnected", "the EngineCore closed its connection")

    def engine_said_dead(self) -> None:
        """The engine reported a fatal error of its loop."""
        self._failed("EngineDead", "the EngineCore reported a fatal error; see the log's end")

    def launcher_ended(self, status: int) -> None:
        """The process the server started has ended."""
        how = f"was killed by signal {-status}" if status < 0 else f"exited with code {status}"
        self._failed("EngineExited", f"the engine's process {how}")

    def log_arrived(self, chunk: bytes) -> None:
        """Output of the engine is progress while it starts, and may say what it does."""
        phases = self._state.phases
        if phases.phase in STARTING_UP:
            self._start_watch.progress(time.monotonic())
            step = self._start_steps.feed(chunk)
            if step is not None:
                phases.step(step.reason, step.message)
                self._announce()

    def check(self, child: EngineChild, now: float) -> None:
        """Hold the engine to its deadlines; call several times per second."""
        phase = self._state.phases.phase
        if phase in STARTING_UP:
            self._check_start(child, now)
        elif phase in (Phase.READY, Phase.DRAINING):
            self._check_step(now)

    def _check_start(self, child: EngineChild, now: float) -> None:
        if now - self._cpu_checked < min(
            _CPU_CHECK_SECONDS, self._state.config.liveness.start_progress_deadline_seconds / 4
        ):
            return
        self._cpu_checked = now
        pid = child.pid
        used = cpu_seconds([pid, *descendants(pid)]) if pid is not None else 0.0
        if self._start_watch.stuck(used, now):
            limit = self._state.config.liveness.start_progress_deadline_seconds
            phases = self._state.phases
            self._failed(
                "StartDeadline",
                f"no progress (handshake, log output, CPU time) for {limit:g} s in phase "
                f"{phases.phase} ({phases.reason})",
            )

    def _check_step(self, now: float) -> None:
        assert self._relay is not None
        self._step_watch.heard(self._relay.heard_at)
        calls = any(session.calls for session in self._state.book.sessions())
        verdict = self._step_watch.check(self._state.in_flight > 0 or calls, now)
        if verdict is Verdict.PROBE:
            self._relay.ask(PAUSED_METHOD, self._probe_answered)
        elif verdict is Verdict.DEAD:
            limit = self._state.config.liveness.step_deadline_seconds
            self._failed("StepDeadline", f"an engine with work showed no output for {limit:g} s")

    def _probe_answered(self, reply: UtilityHead) -> None:
        self._step_watch.answered(reply.value is True, time.monotonic())

    def _ask_when_loaded(self) -> None:
        assert self._handshake is not None
        loaded = self._handshake.step is HandshakeStep.READY and self._payload is not None
        if loaded and not self._asked and self._relay is not None:
            self._asked = True
            self._relay.ask(TASKS_METHOD, self._tasks_answered)

    def _tasks_answered(self, reply: UtilityHead) -> None:
        """The loop works: it has answered a call."""
        assert self._payload is not None
        tasks = reply.value
        try:
            self._state.engine_ready(
                self._payload, [str(task) for task in tasks] if isinstance(tasks, list) else []
            )
        except msgspec.DecodeError as error:
            self._failed("HandshakeFailed", f"the engine's READY payload: {error}")
            return
        self._processes.watch_workers()
        if self._state.phases.enter(Phase.READY, "EngineReady"):
            self._announce()

    def _process_ended(self, message: str) -> None:
        self._failed("EngineExited", message)
