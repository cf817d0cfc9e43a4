"""Names and settings the operator writes into a pod and the engine server reads there.

The operator puts a ServerConfig as JSON into the environment variable CONFIG_ENV; the server
answers with a ServerStatus on STATUS_PATH.
"""

from typing import Annotated, Literal

import msgspec

from enginecore_wire.control import Limits

CONFIG_ENV = "ENGINECORE_CONFIG"
POD_IP_ENV = "ENGINECORE_POD_IP"
DRAIN_TOKEN_ENV = "ENGINECORE_DRAIN_TOKEN"  # noqa: S105 - the name of a variable
LOG_LEVEL_ENV = "ENGINECORE_LOG_LEVEL"
LOG_FORMAT_ENV = "ENGINECORE_LOG_FORMAT"
HANDSHAKE_ADDRESS_ENV = "ENGINECORE_HANDSHAKE_ADDRESS"
HANDSHAKE_PORT_ENV = "ENGINECORE_HANDSHAKE_PORT"

INPUT_PORT = 5557
OUTPUT_PORT = 5558
HTTP_PORT = 8080
REPORT_PORT = 5559
PUBLISH_PORT = 5560

HEALTH_PATH = "/healthz"
READY_PATH = "/readyz"
STATUS_PATH = "/status"
METRICS_PATH = "/metrics"
DRAIN_PATH = "/drain"

MOST_CLIENTS = 1000
"""An engine has one output socket per client, and libzmq 1023 sockets in a context."""

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model to load: a directory or file in the pod, and the name metrics show."""

    path: str
    served_name: str = ""
    vocab_size: int | None = None


class RuntimeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What runs behind the server.

    `command` is the whole command of a custom runtime; `args` are appended to the command
    of every type. `$(ENGINECORE_HANDSHAKE_PORT)` and `$(ENGINECORE_HANDSHAKE_ADDRESS)` in
    them are replaced. `version` is the vLLM release whose messages the engine speaks, for
    engines that do not report it themselves (vLLM does since 0.23).
    """

    type: Literal["torch", "vllm", "custom"] = "torch"
    command: list[str] = []
    args: list[str] = []
    version: str = ""


class TransportConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the server listens; port 0 takes a free one (shown in the status).

    `backlog_bytes` may wait for one client that does not read; then it is dropped. With `security`
    Curve both sockets are encrypted and take the keys listed in `clients_directory`, in files named
    by role; `secret_key_file` has the server's own secret key.
    """

    host: str = "*"
    input_port: Port = INPUT_PORT
    output_port: Port = OUTPUT_PORT
    http_port: Port = HTTP_PORT
    max_clients: Annotated[int, msgspec.Meta(ge=1, le=MOST_CLIENTS)] = 64
    backlog_bytes: Annotated[int, msgspec.Meta(ge=1)] = 64 << 20
    security: Literal["Curve", "None"] = "None"
    secret_key_file: str = ""
    clients_directory: str = ""


class LivenessConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Timers in seconds (docs/protocol.md)."""

    ping_seconds: Seconds = 1.0
    lost_after_seconds: Seconds = 4.0
    grace_seconds: Seconds = 5.0
    step_deadline_seconds: Seconds = 60.0
    start_progress_deadline_seconds: Seconds = 600.0


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings of one engine server.

    `coordinator_key` is the coordinator's public key; or `coordinator_keys_file` lists those it may
    have, a line each, and is read again whenever nobody takes the reports.
    """

    name: str
    model: ModelConfig
    rank: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    epoch: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    cluster: str = ""
    runtime: RuntimeConfig = RuntimeConfig()
    transport: TransportConfig = TransportConfig()
    liveness: LivenessConfig = LivenessConfig()
    limits: Limits = Limits()
    drain_deadline_seconds: Seconds = 60.0
    coordinator_address: str | None = None
    coordinator_key: str = ""
    coordinator_keys_file: str = ""


class EngineFacts(msgspec.Struct, frozen=True, rename="camel"):
    """What the engine said about itself once it was ready."""

    version: Annotated[str, msgspec.Meta(description="The engine's own version.")] = ""
    dtype: Annotated[str, msgspec.Meta(description="Type of its weights and activations.")] = ""
    max_model_len: Annotated[int, msgspec.Meta(description="Longest sequence in tokens.")] = 0
    num_gpu_blocks: Annotated[int, msgspec.Meta(description="Blocks of its KV cache.")] = 0
    vocab_size: Annotated[int, msgspec.Meta(description="Token ids run from 0 to one less.")] = 0


class PhaseRecord(msgspec.Struct, frozen=True, rename="camel"):
    """One phase the server went through; `at` is wall-clock seconds since the epoch."""

    phase: str
    at: float
    reason: str = ""


class ClientStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One client's session; what is queued waits for it to read."""

    slot: int
    name: str
    role: str
    connected: bool
    in_flight: int
    calls: int
    outputs_sent: int
    queued_messages: int
    queued_bytes: int


class LoadStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The scheduler's last word."""

    running: int
    waiting: int
    kv_cache_usage: float


class LimitsStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The limits in force, as READY has them."""

    frame_bytes: int
    in_flight: int
    in_flight_total: int
    prompt_tokens: int


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The JSON document on STATUS_PATH, and what a server leaves at its end: then `log_packed` has
    more of the log than `log_tail` has room for (packed_log.py)."""

    name: str
    rank: int
    epoch: int
    cluster: str = ""
    model_name: str = ""
    runtime: str = ""
    phase: str
    reason: str = ""
    message: str = ""
    since: float = 0.0
    input_port: int = 0
    output_port: int = 0
    http_port: int = 0
    engine: EngineFacts | None = None
    clients: int = 0
    in_flight: int = 0
    load: LoadStatus | None = None
    limits: LimitsStatus | None = None
    sessions: list[ClientStatus] = []
    phases: list[PhaseRecord] = []
    phase_seconds: dict[str, float] = {}
    log_tail: list[str] = []
    log_packed: str = ""
