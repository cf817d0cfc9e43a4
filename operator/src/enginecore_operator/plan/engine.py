"""What each runtime type brings into an EngineCore's pod."""

from typing import Any, Final

from enginecore_operator.api import labels
from enginecore_operator.api.v1alpha1 import EngineCoreSpec
from enginecore_operator.plan.rendering import Rendering, container_security_context

SERVER_PATH: Final = "/opt/enginecore"
SERVER_ARCHIVE: Final = "enginecore-server.pyz"
"""The engine server as one file that any Python 3.11 runs, at the root of the server's image."""

_COPY_RESOURCES: Final = {"cpu": "100m", "memory": "64Mi"}
"""Requests and limits alike: the init container changes no pod's class of service."""


def engine_image(spec: EngineCoreSpec, rendering: Rendering) -> str:
    """Return the image of the engine container."""
    if spec.runtime.image:
        return spec.runtime.image
    return rendering.vllm_image if spec.runtime.type == "vllm" else rendering.torch_image


def server_command(spec: EngineCoreSpec) -> list[str]:
    """Return what the engine container runs: the server, which starts the engine."""
    if spec.runtime.type == "vllm":
        return ["python3", f"{SERVER_PATH}/{SERVER_ARCHIVE}"]
    return ["enginecore-server"]


def engine_arguments(spec: EngineCoreSpec) -> list[str]:
    """Return what the server appends to the engine's command.

    All of vLLM's options that concern others than the engine itself come from here, or from
    the server where only it knows them, such as the handshake's port; args may not hold them.
    """
    if spec.runtime.type != "vllm":
        return spec.runtime.args
    return [
        *("--served-model-name", spec.model.served_name or spec.model.name),
        *("--tensor-parallel-size", str(spec.parallelism.tensor)),
        *("--pipeline-parallel-size", str(spec.parallelism.pipeline)),
        *spec.runtime.args,
    ]


def engine_environment(spec: EngineCoreSpec) -> list[dict[str, Any]]:
    """Return the variables that an engine of this type needs; a spec's own go before."""
    home = {"name": "HOME", "value": "/tmp"}  # noqa: S108 - an emptyDir of this pod alone
    if spec.runtime.type != "vllm":
        return [home]
    return [
        home,
        # torch asks for the name of its user, who is not in the image's /etc/passwd.
        {"name": "USER", "value": "enginecore"},
        # All of an engine is in one pod: what its processes tell each other stays there.
        {"name": "VLLM_HOST_IP", "value": "127.0.0.1"},
    ]


def server_copier(spec: EngineCoreSpec, rendering: Rendering) -> list[dict[str, Any]]:
    """Return the init container that brings the engine server to a stock image, if it needs one."""
    if spec.runtime.type != "vllm":
        return []
    return [
        {
            "name": labels.SERVER_CONTAINER,
            "image": rendering.server_image,
            "imagePullPolicy": rendering.image_pull_policy,
            "command": ["cp", f"/{SERVER_ARCHIVE}", f"{SERVER_PATH}/{SERVER_ARCHIVE}"],
            "resources": {"requests": _COPY_RESOURCES, "limits": _COPY_RESOURCES},
            "securityContext": container_security_context(),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [{"name": labels.SERVER_VOLUME, "mountPath": SERVER_PATH}],
        }
    ]


def server_volumes(spec: EngineCoreSpec) -> list[dict[str, Any]]:
    """Return the volume through which the engine server comes, if it comes that way."""
    if spec.runtime.type != "vllm":
        return []
    return [{"name": labels.SERVER_VOLUME, "emptyDir": {}}]


def server_mounts(spec: EngineCoreSpec) -> list[dict[str, Any]]:
    """Return where the engine container finds it."""
    if spec.runtime.type != "vllm":
        return []
    return [{"name": labels.SERVER_VOLUME, "mountPath": SERVER_PATH, "readOnly": True}]
