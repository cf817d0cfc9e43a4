"""Every label, annotation, name and key the operator writes, in one place."""

from typing import Final

GROUP: Final = "enginecore.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CLUSTER_KIND: Final = "EngineCluster"
CORE_KIND: Final = "EngineCore"

FIELD_MANAGER: Final = "enginecore-operator"

LABEL_PREFIX: Final = f"{GROUP}/"
CLUSTER: Final = f"{GROUP}/cluster"
"""Name of the EngineCluster an object belongs to."""
CORE: Final = f"{GROUP}/core"
"""Name of the EngineCore a pod belongs to. Also the server-side filter of the pod watch."""
RANK: Final = f"{GROUP}/rank"
"""Data-parallel rank of an EngineCore or its pod."""
EPOCH: Final = f"{GROUP}/epoch"
"""Which engine process of its EngineCore a pod is, counted from 1."""
REVISION: Final = f"{GROUP}/revision"
"""Hash of the part of the spec that a change of replaces pods."""
ADDRESSABLE: Final = f"{GROUP}/addressable"
"""`true` while the pod may be found by name; removed before a pod is drained or replaced."""
SERVER_KEY: Final = f"{GROUP}/server-key"
"""Annotation: the public key that the engine server of a pod has, with CURVE."""
COMPONENT: Final = f"{GROUP}/component"
"""`engine` or `coordinator`: the selector of workloads."""
ENGINE: Final = "engine"
COORDINATOR: Final = "coordinator"
OPERATOR: Final = "operator"
"""Component of the operator's own pods, which read the status pages of engines."""
CLIENT_PREFIX: Final = f"client.{GROUP}/"
"""Before the name of an EngineCluster, or of an EngineCore of its own: `true` on pods that may
connect. Before the name of a namespace: `true` on namespaces whose pods, labelled so, may connect
to the engines of that one."""
SCRAPER: Final = f"{GROUP}/scraper"
"""On pods of the same namespace, or on a namespace: `true` for those that may read metrics."""
NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
"""Label by which the API server tells a namespace's name to selectors."""

APP_NAME: Final = "app.kubernetes.io/name"
APP_INSTANCE: Final = "app.kubernetes.io/instance"
APP_MANAGED_BY: Final = "app.kubernetes.io/managed-by"

KWOK_NODE: Final = "kwok.x-k8s.io/node"
"""Annotation of simulated nodes: their pods have no process to ask."""

ENGINE_CONTAINER: Final = "engine"
MODEL_VOLUME: Final = "model"
TMP_VOLUME: Final = "tmp"
RUN_VOLUME: Final = "run"
SHM_VOLUME: Final = "dshm"
SERVER_CONTAINER: Final = "enginecore-server"
"""Init container that copies the engine server into the pod of a stock image."""
SERVER_VOLUME: Final = "enginecore-server"
KEY_VOLUME: Final = "enginecore-key"
ALLOWED_VOLUME: Final = "enginecore-allowed-keys"
RESERVED_VOLUMES: Final = (
    MODEL_VOLUME,
    TMP_VOLUME,
    RUN_VOLUME,
    SHM_VOLUME,
    SERVER_VOLUME,
    KEY_VOLUME,
    ALLOWED_VOLUME,
)
RESERVED_INIT_CONTAINERS: Final = (ENGINE_CONTAINER, SERVER_CONTAINER)
RESERVED_ENV_PREFIX: Final = "ENGINECORE_"

ADDRESSES_KEY: Final = "client_addresses.json"
"""Key of the client addresses in the cluster's ConfigMap."""
