"""Settings of the operator, from environment variables."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from enginecore_operator.plan.rendering import Rendering

PREFIX: Final = "ENGINECORE_OPERATOR_"

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class SettingsError(ValueError):
    """A variable is unknown, missing, or has a value that is out of range."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each field is read from ENGINECORE_OPERATOR_<FIELD>.

    `namespace` holds the Lease, `identity` is the holder's name. `namespaces` are those served,
    separated by commas; empty: all. `http_port` 0 takes a free one. Within `key_lag_seconds` a
    ConfigMap or Secret that changed shows in every pod that mounts it.
    """

    namespace: Annotated[str, msgspec.Meta(min_length=1)]
    identity: Annotated[str, msgspec.Meta(min_length=1)]
    namespaces: str = ""
    lease_name: Annotated[str, msgspec.Meta(min_length=1)] = "enginecore-operator"
    torch_image: Annotated[str, msgspec.Meta(min_length=1)] = "enginecore/engine:0.1.0"
    vllm_image: Annotated[str, msgspec.Meta(min_length=1)] = "vllm/vllm-openai:v0.32.0"
    server_image: Annotated[str, msgspec.Meta(min_length=1)] = "enginecore/server:0.1.0"
    coordinator_image: Annotated[str, msgspec.Meta(min_length=1)] = "enginecore/operator:0.1.0"
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    http_host: str = ""
    http_port: Port = 8080
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=256)] = 16
    resync_seconds: Annotated[float, msgspec.Meta(ge=1)] = 300.0
    key_lag_seconds: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 120.0
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @property
    def served_namespaces(self) -> tuple[str, ...]:
        """Namespaces served; empty: all."""
        return tuple(name.strip() for name in self.namespaces.split(",") if name.strip())

    @property
    def rendering(self) -> Rendering:
        """What goes into the objects built."""
        return Rendering(
            torch_image=self.torch_image,
            vllm_image=self.vllm_image,
            server_image=self.server_image,
            coordinator_image=self.coordinator_image,
            operator_namespace=self.namespace,
            image_pull_policy=self.image_pull_policy,
        )


def read_settings(environment: Mapping[str, str], *, identity: str, namespace: str) -> Settings:
    """Read the settings; `identity` and `namespace` are used where none is set.

    Raises SettingsError, which names the variable.
    """
    given: dict[str, Any] = {"namespace": namespace, "identity": identity} | {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(PREFIX)
    }
    try:
        return msgspec.convert(given, Settings, strict=False)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        name = f"{PREFIX}{path.rstrip('`').upper()}" if path else f"{PREFIX}*"
        raise SettingsError(f"{name}: {message}") from error
