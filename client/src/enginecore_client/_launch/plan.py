"""What a client launches, and who is told what becomes of it."""

from typing import NamedTuple, Protocol

from enginecore_client._launch.command import EngineCommand, LaunchOptions


class LaunchPlan(NamedTuple):
    """What is launched: `ranks` are started here, of `size` in all that are expected."""

    command: EngineCommand
    ranks: tuple[int, ...]
    expected: tuple[int, ...]
    size: int
    lockstep: bool
    options: LaunchOptions

    @property
    def alone(self) -> bool:
        """Whether every engine is started here."""
        return set(self.ranks) == set(self.expected)

    @property
    def coordinated(self) -> bool:
        """Whether a coordinator is started: it needs all engines."""
        wanted = self.options.coordinator
        return 1 < self.size == len(self.expected) if wanted is None else wanted

    def tcp(self, port: int) -> str:
        """Return an address of this machine that engines may dial."""
        host = self.options.host
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


class LaunchListener(Protocol):
    """Whoever is told what becomes of engines; called in the launcher's thread."""

    def staged(self, rank: int, stage: str) -> None:
        """An engine that is not ready has come this far."""

    def exited(self, rank: int, ending: str) -> None:
        """The process of an engine ended; `ending` says how."""
