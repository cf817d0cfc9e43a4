"""How clients reach an engine, and which may."""

# ruff: noqa: RUF012 - msgspec makes a new list or dict of an empty default for each object

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from enginecore_operator.api.labels import CLIENT_PREFIX
from enginecore_operator.api.model import Name
from enginecore_operator.api.schema import Rule, Spec
from enginecore_wire.contract import HTTP_PORT, INPUT_PORT, MOST_CLIENTS, OUTPUT_PORT
from enginecore_wire.public_keys import KEY_PATTERN

Port = Annotated[int, Meta(ge=1, le=65535)]
PublicKey = Annotated[str, Meta(pattern=KEY_PATTERN)]


class Transport(Spec, frozen=True):
    """Ports the engine listens on and how many clients it serves."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.inputPort != self.outputPort",
            "equals inputPort",
            ".outputPort",
            lambda transport: transport.input_port != transport.output_port,
        ),
        Rule(
            "self.inputPort != self.httpPort",
            "equals inputPort",
            ".httpPort",
            lambda transport: transport.input_port != transport.http_port,
        ),
        Rule(
            "self.outputPort != self.httpPort",
            "equals outputPort",
            ".httpPort",
            lambda transport: transport.output_port != transport.http_port,
        ),
    )
    input_port: Annotated[Port, Meta(description="ZMQ input socket.")] = INPUT_PORT
    output_port: Annotated[Port, Meta(description="ZMQ output socket.")] = OUTPUT_PORT
    http_port: Annotated[Port, Meta(description="Health, status and metrics.")] = HTTP_PORT
    max_clients: Annotated[
        int, Meta(ge=1, le=MOST_CLIENTS, description="Clients served at the same time.")
    ] = 64
    security: Annotated[
        Literal["Curve", "None"],
        Meta(
            description="Curve: everything is encrypted, and only holders of listed keys get in; "
            "the operator makes the keys. None: whoever reaches the ports can use the engine."
        ),
    ] = "Curve"
    expose: Annotated[
        Literal["None", "NodePort", "LoadBalancer"],
        Meta(
            description="How clients outside the cluster reach the engine: by a Service of this "
            "type of its own, whose addresses are in status; None: not at all. Replaces no pod."
        ),
    ] = "None"
    network_policy: Annotated[
        Literal["Clients", "None"],
        Meta(
            description="Who may connect, where the cluster's network enforces NetworkPolicies. "
            f"Clients: pods labelled {CLIENT_PREFIX}NAME=true, NAME being that of the "
            "EngineCluster, or of an EngineCore of its own; everybody, if expose or hostNetwork "
            "lets clients outside in. None: everybody. Replaces no pod."
        ),
    ] = "Clients"


PublicKeys = Annotated[list[PublicKey], Meta(max_length=256)]


class Keys(Spec, frozen=True):
    """Keys with transport.security Curve."""

    generation: Annotated[
        int,
        Meta(
            ge=1,
            le=2**31 - 1,
            description="Another number makes new keys for engines, coordinator and clients, and "
            "brings them in step by step; none is lost that was let in.",
        ),
    ] = 1
    infer: Annotated[
        PublicKeys,
        Meta(
            description="Public keys of further clients that may send requests, 40 characters of "
            "Z85 each, as python -m enginecore_curve prints them."
        ),
    ] = []
    admin: Annotated[
        PublicKeys,
        Meta(description="Public keys of further clients that may control the engine, too."),
    ] = []


class ClusterKeys(Spec, frozen=True):
    """Keys that others made for an engine."""

    secret_name: Annotated[
        Name, Meta(description="Secret with the engine server's secret key, under `server`.")
    ]
    public_key: Annotated[PublicKey, Meta(description="The public key that belongs to it.")]
    allowed_config_map: Annotated[
        Name,
        Meta(description="ConfigMap with the keys that are let in: `infer`, `admin`, a line each."),
    ]
