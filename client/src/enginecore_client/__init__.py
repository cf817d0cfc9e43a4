"""The client: consumes the addresses of EngineCores, streams tokens, exports metrics.

Start at AsyncMPClient (asyncio) or SyncMPClient (threads); docs/client.md is the guide.
"""

from enginecore_client._addresses.addresses import ClientAddresses
from enginecore_client._addresses.cluster import ClusterSource
from enginecore_client._addresses.sources import AddressSource, FileSource, StaticSource
from enginecore_client._core.native_options import NativeOptions
from enginecore_client._core.ranks import engine_ranks
from enginecore_client._faces.aio import AsyncMPClient
from enginecore_client._faces.dp import DPAsyncMPClient, DPLBAsyncMPClient
from enginecore_client._faces.face import EngineCoreClient
from enginecore_client._faces.factory import make_async_mp_client, make_client
from enginecore_client._faces.inproc import InprocClient
from enginecore_client._faces.mp import MPClient
from enginecore_client._faces.outputs import GeneratedOutput
from enginecore_client._faces.streams import AsyncStream, SyncStream
from enginecore_client._faces.sync import SyncMPClient
from enginecore_client._launch.command import EngineCommand, LaunchOptions
from enginecore_client._launch.launch import launch_core_engines
from enginecore_client._metrics import start_metrics_server
from enginecore_client.errors import (
    AddressError,
    AuthenticationError,
    ClientClosedError,
    EngineCoreError,
    EngineDeadError,
    EngineDrainingError,
    EngineNotReadyError,
    EngineStartupError,
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
from enginecore_client.zmq_sockets import make_zmq_socket
from enginecore_wire.outputs import EngineCoreOutput, EngineCoreOutputs, FinishReason
from enginecore_wire.requests import EngineCoreRequest, OutputKind, SamplingParams

__all__ = [
    "AddressError",
    "AddressSource",
    "AsyncMPClient",
    "AsyncStream",
    "AuthenticationError",
    "ClientAddresses",
    "ClientClosedError",
    "ClusterSource",
    "DPAsyncMPClient",
    "DPLBAsyncMPClient",
    "EngineCommand",
    "EngineCoreClient",
    "EngineCoreError",
    "EngineCoreOutput",
    "EngineCoreOutputs",
    "EngineCoreRequest",
    "EngineDeadError",
    "EngineDrainingError",
    "EngineNotReadyError",
    "EngineStartupError",
    "FileSource",
    "FinishReason",
    "GeneratedOutput",
    "InprocClient",
    "LaunchOptions",
    "LostOutputsError",
    "MPClient",
    "NativeOptions",
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
    "engine_ranks",
    "launch_core_engines",
    "make_async_mp_client",
    "make_client",
    "make_zmq_socket",
    "start_metrics_server",
]
