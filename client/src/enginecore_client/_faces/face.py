"""EngineCoreClient: the face of every client, blocking and awaited."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from enginecore_client._faces.controls import Controls
from enginecore_client._metrics import Metrics, NoMetrics
from enginecore_client.errors import ScalingNotAvailable
from enginecore_client.ops import Op
from enginecore_wire.outputs import EngineCoreOutputs
from enginecore_wire.requests import EngineCoreRequest
from enginecore_wire.wording import counted

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from enginecore_client._faces.aio import AsyncMPClient

R = TypeVar("R")


class EngineCoreClient(Controls, ABC):
    """What every client of EngineCores offers; the names and their meaning are vLLM's.

    Each operation has a blocking form and one that is awaited, named `*_async`. A client
    implements one of the two: InprocClient and SyncMPClient block, AsyncMPClient and the
    classes derived from it are awaited. The other form raises NotImplementedError and says so.
    """

    @staticmethod
    def make_client(
        multiprocess_mode: bool, asyncio_mode: bool, *args: Any, **options: Any
    ) -> "EngineCoreClient":
        """Return a client of the right class; see `enginecore_client.make_client`."""
        from enginecore_client._faces.factory import make_client  # noqa: PLC0415 - it stands on this

        return make_client(multiprocess_mode, asyncio_mode, *args, **options)

    @staticmethod
    def make_async_mp_client(*args: Any, **options: Any) -> "AsyncMPClient":
        """Return an awaited client; see `enginecore_client.make_async_mp_client`."""
        from enginecore_client._faces.factory import (  # noqa: PLC0415 - it stands on this
            make_async_mp_client,
        )

        return make_async_mp_client(*args, **options)

    @abstractmethod
    def shutdown(self, timeout: float | None = None) -> None:
        """End the engines that are the client's own, and close the client. Idempotent.

        Args:
            timeout: seconds that engines get to end in order; None for the default. Engines
                that others started are left alone.
        """

    def add_request(self, request: EngineCoreRequest) -> None:
        """Send a request whose outputs `get_output` returns.

        Raises:
            RequestRejectedError: a field is wrong; nothing was sent.
            EngineNotReadyError, EngineDeadError, EngineDrainingError, OverloadedError:
                no engine takes it now.
        """
        del request
        self._is_awaited("add_request")

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        """Send a request whose outputs `get_output_async` returns; raises as `add_request`."""
        del request
        self._blocks("add_request")

    def get_output(self) -> EngineCoreOutputs:
        """Return the next outputs of requests added by `add_request`.

        Raises:
            EngineDeadError: once for each engine that died; other engines go on.
            EngineCoreError: requests ended with an error; `request_ids` names them.
        """
        self._is_awaited("get_output")

    async def get_output_async(self) -> EngineCoreOutputs:
        """Return the next outputs of requests added by `add_request_async`; see `get_output`."""
        self._blocks("get_output")

    def abort_requests(self, request_ids: Sequence[str]) -> list[str]:
        """End requests; unknown ids are ignored. Streams end with finish reason ABORT.

        What was added for `get_output` gets no last output there, as from vLLM's clients: whoever
        waits for it has to take the returned ids off the list. Tokens that came before the abort
        may still follow.

        Returns:
            The ids of those that had not ended.

        Raises:
            RequestRejectedError: `request_ids` are not ids.
        """
        del request_ids
        self._is_awaited("abort_requests")

    async def abort_requests_async(self, request_ids: Sequence[str]) -> list[str]:
        """End requests; see `abort_requests`."""
        del request_ids
        self._blocks("abort_requests")

    def call(self, op: Op[R]) -> R:
        """Run a control operation and return its result.

        Raises:
            RequestRejectedError: an argument is wrong; nothing was sent.
            UtilityError: an engine says that it failed, or engines disagree.
        """
        self._is_awaited(op.utility)

    async def call_async(self, op: Op[R]) -> R:
        """Run a control operation and return its result; raises as `call` does."""
        self._blocks(op.utility)

    def dp_engines_running(self) -> bool:
        """Say whether engines that step together are doing so now, as far as is known.

        Independent engines never do, and this is False.
        """
        return False

    def scale_elastic_ep(self, new_data_parallel_size: int) -> Any:
        """Set the number of engines, where the client can; new ones are used once they are ready.

        Only a client that follows an EngineCluster (ClusterSource) can: it writes the cluster's
        /scale with the rights of its own account. This returns when that is written.

        Raises:
            ScalingNotAvailable: it cannot, or may not; the text says why.
            RequestRejectedError: that is no number of engines.
        """
        raise ScalingNotAvailable(
            f"cannot scale to {counted(new_data_parallel_size, 'engine')}: "
            f"{type(self).__name__} has the "
            "engine it was given and no other"
        )

    def _is_awaited(self, name: str) -> NoReturn:
        raise NotImplementedError(
            f"{type(self).__name__} is awaited: use {name}_async, or SyncMPClient"
        )

    def _blocks(self, name: str) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} blocks: use {name}, or AsyncMPClient")


def make_metrics(registry: "CollectorRegistry | None") -> NoMetrics:
    """Return the metrics of a client on `registry`, or none."""
    return NoMetrics() if registry is None else Metrics(registry)
