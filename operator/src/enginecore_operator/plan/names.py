"""Names and addresses of everything the operator makes, in one place."""

from enginecore_operator.api.labels import APP_INSTANCE, APP_MANAGED_BY, APP_NAME, FIELD_MANAGER
from enginecore_wire.contract import REPORT_PORT


def core_name(cluster: str, rank: int) -> str:
    """Name of the EngineCore of a rank, and host name of its pods."""
    return f"{cluster}-{rank}"


def pod_name(core: str, epoch: int) -> str:
    """Name of the pod of an epoch."""
    return f"{core}-{epoch}"


def engines_service_name(cluster: str) -> str:
    """Name of the headless Service; not the cluster's, which users like for their own."""
    return f"{cluster}-engines"


def coordinator_name(cluster: str) -> str:
    """Name of the coordinator's Deployment and Service."""
    return f"{cluster}-coordinator"


def exposure_name(core: str) -> str:
    """Name of the Service by which clients outside the cluster reach an engine."""
    return f"{core}-exposed"


def engines_policy_name(cluster: str) -> str:
    """Name of the NetworkPolicy of a cluster's engines; its coordinator's is named as that is."""
    return f"{cluster}-engines"


def core_policy_name(core: str) -> str:
    """Name of the NetworkPolicy of an engine that belongs to no cluster."""
    return f"{core}-engine"


def addresses_name(cluster: str) -> str:
    """Name of the ConfigMap with the client addresses."""
    return f"{cluster}-client-addresses"


def keys_secret_name(holder: str, generation: int) -> str:
    """Name of the Secret with all secret keys of a generation."""
    return f"{holder}-keys-{generation}"


def client_secret_name(holder: str, role: str) -> str:
    """Name of the Secret that clients of a role mount."""
    return f"{holder}-client" if role == "infer" else f"{holder}-{role}"


def allowed_keys_name(holder: str) -> str:
    """Name of the ConfigMap with the public keys that are let in."""
    return f"{holder}-allowed-keys"


def coordinator_address(cluster: str, namespace: str) -> str:
    """Where engines report: by name, as the Service may get another IP."""
    return f"tcp://{coordinator_name(cluster)}.{namespace}.svc:{REPORT_PORT}"


def tcp_address(host: str, port: int) -> str:
    """Write a ZMQ address; an IPv6 host is bracketed, an empty one gives an empty address."""
    if not host:
        return ""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def engine_host(core: str, cluster: str, namespace: str) -> str:
    """DNS name of an engine of a cluster, the same for all its epochs."""
    return f"{core}.{engines_service_name(cluster)}.{namespace}.svc"


def common_labels(instance: str) -> dict[str, str]:
    """Return the recommended labels of all objects of an EngineCluster or EngineCore."""
    return {
        APP_NAME: "enginecore",
        APP_INSTANCE: instance,
        APP_MANAGED_BY: FIELD_MANAGER,
    }
