"""The coordinator process of launched engines."""

import logging
import signal
import sys
from typing import Final, NamedTuple

import msgspec

from enginecore_client._launch.plan import LaunchPlan
from enginecore_client._launch.process import ChildProcess, end_all, ending_of
from enginecore_client.errors import EngineStartupError
from enginecore_wire.coordination import CoordinatorAddresses

_LOG = logging.getLogger("enginecore_client")

START_SECONDS: Final = 120.0
"""How long the coordinator may take to say where it is."""

AGAIN_SECONDS: Final = 1.0
"""A coordinator is not started more often than this."""

_MODULE: Final = "enginecore_coordinator.native"


class Coordinator(NamedTuple):
    """The coordinator process of launched engines."""

    pid: int
    addresses: CoordinatorAddresses

    def get_stats_publish_address(self) -> str:
        """Return where clients subscribe to loads."""
        return self.addresses.stats_publish


class CoordinatorProcess:
    """Starts the coordinator, and waits for it without blocking.

    Args:
        plan: what is launched.
        wanted: where it is to bind; engines and clients find one that is started again there.
        now: monotonic seconds.
    """

    def __init__(self, plan: LaunchPlan, wanted: CoordinatorAddresses, now: float) -> None:
        self.known: Coordinator | None = None
        self._by = now + START_SECONDS
        command = [
            sys.executable, "-m", _MODULE, "--engines", str(plan.size), "--input", wanted.input,
            "--output", wanted.output, "--publish", wanted.stats_publish,
            *(["--lockstep"] if plan.lockstep else []),
        ]  # fmt: skip
        self.child = ChildProcess(command, {}, forward=False)

    def look(self, now: float) -> Coordinator | None:
        """Return the coordinator once, as soon as it has said where it is.

        Raises:
            EngineStartupError: it ended, or says nothing; the process is still to be closed.
        """
        status = self.child.poll()
        if status is not None:
            self.child.read()
            raise EngineStartupError(f"the coordinator {ending_of(status)}{self.child.last_words}")
        if self.known is not None:
            return None
        if now > self._by:
            raise EngineStartupError(f"the coordinator said nothing{self.child.last_words}")
        if self.child.announcement is None:
            return None
        try:
            found = msgspec.json.decode(self.child.announcement, type=CoordinatorAddresses)
        except msgspec.DecodeError as error:
            words = self.child.last_words
            raise EngineStartupError(f"the coordinator cannot start{words}") from error
        self.known = Coordinator(self.child.pid, found)
        return self.known


class CoordinatorKeeper:
    """Keeps one coordinator running, at the same addresses once it has some.

    Args:
        plan: what is launched.

    Attributes:
        known: the coordinator, as soon as it has said where it is.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        self.known: Coordinator | None = None
        self._plan = plan
        self._process: CoordinatorProcess | None = None
        self._again_at = 0.0

    @property
    def children(self) -> list[ChildProcess]:
        """Return its process, if it runs."""
        return [] if self._process is None else [self._process.child]

    def start(self, wanted: CoordinatorAddresses, now: float) -> None:
        """Start the process."""
        self._again_at = now + AGAIN_SECONDS
        self._process = CoordinatorProcess(self._plan, wanted, now)

    def look(self, now: float) -> Coordinator | None:
        """Return the coordinator when it has said where it is; replace one that ended later.

        Raises:
            EngineStartupError: the first one ended or said nothing.
        """
        if self._process is None:
            if self.known is not None and now >= self._again_at:
                self.start(self.known.addresses, now)
            return None
        try:
            found = self._process.look(now)
        except EngineStartupError as error:
            self._process.child.signal(signal.SIGKILL)
            self._process.child.close()
            self._process = None
            if self.known is None:
                raise
            _LOG.error("%s", error.message)
            return None
        self.known = found or self.known
        return found

    def end(self, stop_seconds: float) -> None:
        """End it, by SIGKILL after `stop_seconds`."""
        end_all(self.children, stop_seconds)
        self._process = None
