"""What runs behind the engine server."""

# ruff: noqa: RUF012 - msgspec makes a new list or dict of an empty default for each object

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from enginecore_operator.api import schema
from enginecore_operator.api.labels import RESERVED_ENV_PREFIX
from enginecore_operator.api.schema import Rule, Spec
from enginecore_operator.api.vllm_options import option_rules


class EnvVar(Spec, frozen=True, omit_defaults=True):
    """One environment variable of the engine container."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!self.name.startsWith('{RESERVED_ENV_PREFIX}')",
            f"names that begin with {RESERVED_ENV_PREFIX} are the operator's",
            ".name",
            lambda variable: not variable.name.startswith(RESERVED_ENV_PREFIX),
        ),
    )
    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=253,
            pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$",
            description="The variable's name.",
        ),
    ]
    value: Annotated[str, Meta(max_length=32768, description="Its value.")] = ""
    value_from: Annotated[
        dict[str, Any] | None,
        Meta(description="Source of the value, as in a Pod: secretKeyRef, configMapKeyRef, …"),
    ] = None


Env = Annotated[
    list[EnvVar],
    Meta(
        max_length=128,
        description="Environment of the engine container.",
        extra_json_schema=schema.KEYED_BY_NAME,
    ),
]


Argument = Annotated[str, Meta(max_length=1024)]


class Runtime(Spec, frozen=True):
    """What runs behind the engine server."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.type != 'custom' || (has(self.image) && self.image != '')",
            "type custom needs an image that holds enginecore-server and the engine",
            ".image",
            lambda runtime: runtime.type != "custom" or runtime.image != "",
        ),
        Rule(
            "self.type != 'custom' || (has(self.command) && self.command.size() > 0)",
            "type custom needs the command that starts the engine",
            ".command",
            lambda runtime: runtime.type != "custom" or len(runtime.command) > 0,
        ),
        Rule(
            "self.type == 'custom' || !has(self.command) || self.command.size() == 0",
            "only type custom takes a command; give arguments in args",
            ".command",
            lambda runtime: runtime.type == "custom" or not runtime.command,
        ),
        *option_rules(),
    )
    type: Annotated[
        Literal["torch", "vllm", "custom"],
        Meta(
            description="torch: the built-in engine. vllm: `vllm serve --headless` in a stock vLLM "
            "image, into which the engine server is copied. custom: any engine that speaks vLLM's "
            "handshake, started by command."
        ),
    ] = "torch"
    image: Annotated[
        str,
        Meta(
            max_length=1024,
            description="Image; empty: the operator's default for the type. An image of type vllm "
            "has vLLM and Python 3.11 or newer, one of type custom has enginecore-server.",
        ),
    ] = ""
    command: Annotated[
        list[Argument], Meta(max_length=64, description="Command of a custom engine.")
    ] = []
    args: Annotated[
        list[Argument],
        Meta(
            max_length=64,
            description="Arguments appended to the command; those of vLLM that the spec has a "
            "field for are refused.",
        ),
    ] = []
    env: Env = []


class Parallelism(Spec, frozen=True):
    """How an engine of type vllm spreads its model over its devices."""

    tensor: Annotated[
        int, Meta(ge=1, le=64, description="Devices that share each layer (tensor parallel).")
    ] = 1
    pipeline: Annotated[
        int, Meta(ge=1, le=64, description="Groups of devices that share the layers (pipeline).")
    ] = 1

    @property
    def devices(self) -> int:
        """Devices an engine computes on."""
        return self.tensor * self.pipeline
