"""Everything the client raises, in one tree.

    EngineCoreError
    ├── EngineDeadError          the engine process or its pod is gone
    ├── EngineDrainingError      the engine takes no new requests
    ├── EngineNotReadyError      no engine can take the request or call now
    │   ├── StartupTimeoutError  not every engine was ready in time (also TimeoutError)
    │   └── EngineStartupError   an engine this client started ended before it was ready
    ├── OverloadedError          too many unfinished requests
    ├── LostOutputsError         a connection broke and messages went with it
    ├── RequestRejectedError     a field of the request is wrong (also ValueError)
    ├── RequestTimeoutError      a deadline of the caller passed (also TimeoutError)
    ├── UtilityError             the engine ran a control call and it failed
    ├── NotPermittedError        the engine server refused a control call
    ├── AuthenticationError      a key is missing, refused, or not the server's
    ├── ProtocolMismatchError    the two sides do not speak the same language
    ├── ScalingNotAvailable      this client cannot change the number of engines
    ├── AddressError             client_addresses are wrong (also ValueError)
    └── ClientClosedError        the client was closed

`retryable` says whether the same request may succeed elsewhere or later; it is False, too, where
nobody has answered for 30 s at addresses that do not change. `engine` is the data-parallel rank
concerned, `request_ids` the requests that ended with the error.
"""

from collections.abc import Sequence


class EngineCoreError(Exception):
    """Base of all errors of this package."""

    retryable: bool = False

    def __init__(
        self, message: str, *, engine: int | None = None, request_ids: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.engine = engine
        self.request_ids = tuple(request_ids)

    def again(self, request_ids: Sequence[str] = ()) -> "EngineCoreError":
        """Return a fresh error of the same kind, so that each waiter raises its own."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.args = self.args
        copy.request_ids = tuple(request_ids)
        copy.__cause__ = self.__cause__
        return copy


class EngineDeadError(EngineCoreError):
    """The engine process died, or its pod cannot be reached any more."""

    retryable = True


class EngineDrainingError(EngineCoreError):
    """The engine finishes what it has and takes nothing new."""

    retryable = True


class EngineNotReadyError(EngineCoreError):
    """No engine can take the request or call now."""

    retryable = True


class StartupTimeoutError(EngineNotReadyError, TimeoutError):
    """Not every engine was ready in time; the text names each missing rank and its phase."""

    retryable = False


class EngineStartupError(EngineNotReadyError):
    """An engine that this client started ended before it was ready, or was started wrongly; the
    text has its rank, how it ended, and what it wrote last."""

    retryable = False


class OverloadedError(EngineCoreError):
    """The engine holds as many unfinished requests of this client as it accepts."""

    retryable = True


class LostOutputsError(EngineCoreError):
    """A connection broke and took messages along: the stream has a hole and was ended."""

    retryable = True


class RequestRejectedError(EngineCoreError, ValueError):
    """A request or call is wrong; `field` is the path of the offending field."""

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        engine: int | None = None,
        request_ids: Sequence[str] = (),
    ) -> None:
        super().__init__(message, engine=engine, request_ids=request_ids)
        self.field = field


class RequestTimeoutError(EngineCoreError, TimeoutError):
    """A deadline that the caller gave has passed."""


class UtilityError(EngineCoreError):
    """The engine ran a control call and it failed, or engines that must agree do not."""


class NotPermittedError(EngineCoreError):
    """The engine server does not allow this client the call."""


class AuthenticationError(EngineCoreError):
    """Client and engine server do not know each other's keys; the text says what to do."""


class ProtocolMismatchError(EngineCoreError):
    """Client and pod have no protocol version or message layout in common."""


class ScalingNotAvailable(EngineCoreError):  # noqa: N818 - a condition, named as in the API
    """A client that only has addresses cannot change the number of engines."""


class AddressError(EngineCoreError, ValueError):
    """client_addresses are wrong; the text names the key and the remedy."""


class ClientClosedError(EngineCoreError):
    """The client was closed while, or before, this was asked of it."""
