"""The coordinator process of launched engines."""

import sys
from typing import Final, NamedTuple

import msgspec

from enginecore_client._plan import LaunchPlan
from enginecore_client._process import ChildProcess, ending_of
from enginecore_client.errors import EngineStartupError
from enginecore_wire.coordination import CoordinatorAddresses

START_SECONDS: Final = 120.0
"""How long the coordinator may take to say where it is."""

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
