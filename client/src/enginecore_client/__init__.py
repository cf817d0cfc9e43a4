"""The client: consumes the addresses of EngineCores, streams tokens, exports metrics.

Start at AsyncMPClient (asyncio) or SyncMPClient (threads); docs/client.md is the guide.
"""

from enginecore_client._addresses import ClientAddresses
from enginecore_client._aio import AsyncMPClient
from enginecore_client._cluster import ClusterSource
from enginecore_client._dp import DPAsyncMPClient, DPLBAsyncMPClient
from enginecore_client._face import EngineCoreClient
from enginecore_client._factory import make_async_mp_client, make_client
from enginecore_client._inproc import InprocClient
from enginecore_client._metrics import start_metrics_server
from enginecore_client._mp import MPClient
from enginecore_client._sources import AddressSource, FileSource, StaticSource
from enginecore_client._streams import AsyncStream, SyncStream
from enginecore_client._sync import SyncMPClient
from enginecore_client.errors import (
    AddressError,
    ClientClosedError,
    EngineCoreError,
    EngineDeadError,
    EngineDrainingError,
    EngineNotReadyError,
    LostOutputsError,
    NotPermittedError,
    OverloadedError,
    ProtocolMismatchError,
    RequestRejectedError,
    RequestTimeoutError,
    ScalingNotAvailable,
    StartupTimeoutError,
    UtilityError,
)
from enginecore_wire.outputs import EngineCoreOutput, EngineCoreOutputs, FinishReason
from enginecore_wire.requests import EngineCoreRequest, OutputKind, SamplingParams

__all__ = [
    "AddressError",
    "AddressSource",
    "AsyncMPClient",
    "AsyncStream",
    "ClientAddresses",
    "ClientClosedError",
    "ClusterSource",
    "DPAsyncMPClient",
    "DPLBAsyncMPClient",
    "EngineCoreClient",
    "EngineCoreError",
    "EngineCoreOutput",
    "EngineCoreOutputs",
    "EngineCoreRequest",
    "EngineDeadError",
    "EngineDrainingError",
    "EngineNotReadyError",
    "FileSource",
    "FinishReason",
    "InprocClient",
    "LostOutputsError",
    "MPClient",
    "NotPermittedError",
    "OutputKind",
    "OverloadedError",
    "ProtocolMismatchError",
    "RequestRejectedError",
    "RequestTimeoutError",
    "SamplingParams",
    "ScalingNotAvailable",
    "StartupTimeoutError",
    "StaticSource",
    "SyncMPClient",
    "SyncStream",
    "UtilityError",
    "make_async_mp_client",
    "make_client",
    "start_metrics_server",
]
