"""What outlives a client for a moment: sockets, a thread or a loop's callbacks, ended once."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from enginecore_client._shell.driver import Driver
from enginecore_client._sockets.resources import Socket
from enginecore_client.errors import EngineDeadError
from enginecore_wire.frames import Frame
from enginecore_wire.outputs import is_last_word


class BackgroundResources(ABC):
    """Everything of a client that has to be ended, and nothing that refers to the client.

    A client registers its resources with `weakref.finalize`: they end when it is closed, when
    it is collected, when its construction fails, and when the interpreter ends.
    """

    turns = False

    def __init__(self) -> None:
        self.driver: Driver | None = None

    @property
    def engine_dead(self) -> bool:
        """Whether every engine of the client died or was lost, and none is back."""
        return self.driver is not None and self.driver.core.engine_dead

    @staticmethod
    def validate_alive(frames: Sequence[Frame]) -> None:
        """Raise if a message is an engine's last one.

        Raises:
            EngineDeadError: it is.
        """
        if is_last_word(frames):
            raise EngineDeadError("the engine process died")

    @abstractmethod
    def __call__(self) -> None:
        """End everything, from whatever thread; later calls do nothing."""

    @abstractmethod
    def watch(self, socket: Socket, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `socket` may have something to read."""

    @abstractmethod
    def unwatch(self, socket: Socket) -> None:
        """Stop that; the socket is about to be closed."""

    @abstractmethod
    def again(self, callback: Callable[[], None]) -> None:
        """Call `callback` soon: there may be more to read than was read."""

    @abstractmethod
    def post(self, callback: Callable[[], None]) -> None:
        """Call `callback` where the driver lives; from any thread."""
