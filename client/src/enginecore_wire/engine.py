"""The face of an engine without sockets, as an in-process client or a process wrapper uses it."""

from collections.abc import Sequence
from typing import Any, Protocol

from enginecore_wire.outputs import EngineCoreOutputs
from enginecore_wire.problems import RequestLimits
from enginecore_wire.requests import EngineCoreRequest


class EngineLike(Protocol):
    """An EngineCore: holds requests, and computes one step for all of them at a time."""

    @property
    def limits(self) -> RequestLimits:
        """What requests are held to."""

    def add_request(self, request: EngineCoreRequest) -> None:
        """Take a request in.

        Raises:
            ValueError: the request cannot be computed; the text names field and limit.
        """

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Forget requests; unknown ids are ignored and no output follows."""

    def step(self) -> dict[int, EngineCoreOutputs]:
        """Compute one step and return its outputs by client index; {} when there is no work."""

    def has_work(self) -> bool:
        """Say whether a step would compute anything."""

    def call(self, method: str, args: Sequence[Any]) -> Any:
        """Run a utility call and return its value.

        Raises:
            ValueError: there is no such method, or the arguments do not fit it.
        """

    def shutdown(self) -> None:
        """Release everything; the engine is not used again."""
