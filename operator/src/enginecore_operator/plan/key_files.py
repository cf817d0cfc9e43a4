"""Keys as files in pods: what is mounted where, and the settings that name it."""

import posixpath
from typing import Any, Final

from enginecore_operator.api import labels
from enginecore_operator.api.transport import ClusterKeys
from enginecore_operator.api.v1alpha1 import EngineCoreSpec

CURVE: Final = "Curve"
SERVER: Final = "server"
COORDINATOR: Final = "coordinator"
"""Entries of a generation's Secret, and files of those who are let in."""

_KEY_PATH: Final = "/etc/enginecore/key"
_ALLOWED_PATH: Final = "/etc/enginecore/allowed-keys"
_SECRET_FILE: Final = "secret-key"  # noqa: S105 - the name of a file


def volumes(keys: ClusterKeys, party: str) -> list[dict[str, Any]]:
    """Return a party's secret key alone, and the whole list of those who are let in.

    The list is mounted as a directory, which follows the ConfigMap.
    """
    item = {"key": party, "path": _SECRET_FILE}
    return [
        {
            "name": labels.KEY_VOLUME,
            "secret": {"secretName": keys.secret_name, "items": [item]},
        },
        {"name": labels.ALLOWED_VOLUME, "configMap": {"name": keys.allowed_config_map}},
    ]


def mounts() -> list[dict[str, Any]]:
    """Return where a container finds both."""
    return [
        {"name": labels.KEY_VOLUME, "mountPath": _KEY_PATH, "readOnly": True},
        {"name": labels.ALLOWED_VOLUME, "mountPath": _ALLOWED_PATH, "readOnly": True},
    ]


def server_volumes(spec: EngineCoreSpec) -> list[dict[str, Any]]:
    """Return the volumes of an engine's pod."""
    keys = _keys_of(spec)
    return volumes(keys, SERVER) if keys else []


def server_mounts(spec: EngineCoreSpec) -> list[dict[str, Any]]:
    """Return the mounts of an engine's container."""
    return mounts() if _keys_of(spec) else []


def annotations(spec: EngineCoreSpec) -> dict[str, Any]:
    """Return the part of a pod's metadata that tells its public key."""
    keys = _keys_of(spec)
    return {"annotations": {labels.SERVER_KEY: keys.public_key}} if keys else {}


def transport_settings(spec: EngineCoreSpec) -> dict[str, Any]:
    """Return the engine server's settings of CURVE."""
    if _keys_of(spec) is None:
        return {}
    return {
        "security": spec.transport.security,
        "secret_key_file": posixpath.join(_KEY_PATH, _SECRET_FILE),
        "clients_directory": _ALLOWED_PATH,
    }


def coordinator_settings(spec: EngineCoreSpec) -> dict[str, Any]:
    """Return how the engine server knows the coordinator."""
    if _keys_of(spec) is None or not spec.coordinator_address:
        return {}
    if spec.coordinator_key:
        return {"coordinator_key": spec.coordinator_key}
    return {"coordinator_keys_file": posixpath.join(_ALLOWED_PATH, COORDINATOR)}


def coordinator_arguments() -> list[str]:
    """Return the coordinator's options of CURVE."""
    return [
        *("--secret-key-file", posixpath.join(_KEY_PATH, _SECRET_FILE)),
        *("--clients-directory", _ALLOWED_PATH),
    ]


def _keys_of(spec: EngineCoreSpec) -> ClusterKeys | None:
    """Return what an engine's pod is to have; None where it is to speak without CURVE."""
    if spec.transport.security != CURVE:
        return None
    assert spec.cluster_keys is not None, "a pod is made once its keys are there"
    return spec.cluster_keys
