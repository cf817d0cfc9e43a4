"""The kinds the operator deals with, and their URLs."""

from typing import Final, NamedTuple
from urllib.parse import quote

from enginecore_operator.api import labels


class Resource(NamedTuple):
    """One kind. `selector` limits lists and watches to objects of ours."""

    kind: str
    group: str
    version: str
    plural: str
    selector: str = ""
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The apiVersion in manifests."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of an object, or of a collection where there is no name."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if self.namespaced and namespace:
            root += f"/namespaces/{quote(namespace, safe='')}"
        root += f"/{self.plural}"
        if name:
            root += f"/{quote(name, safe='')}"
        return f"{root}/{subresource}" if subresource else root


_OF_A_CLUSTER: Final = labels.CLUSTER
_OURS: Final = f"{labels.APP_MANAGED_BY}={labels.FIELD_MANAGER}"

CLUSTERS: Final = Resource(labels.CLUSTER_KIND, labels.GROUP, labels.VERSION, "engineclusters")
CORES: Final = Resource(labels.CORE_KIND, labels.GROUP, labels.VERSION, "enginecores")
PODS: Final = Resource("Pod", "", "v1", "pods", selector=labels.CORE)
SERVICES: Final = Resource("Service", "", "v1", "services", selector=_OURS)
"""Of a cluster, or of an engine that may belong to none; so are NetworkPolicies and ConfigMaps."""
NETWORK_POLICIES: Final = Resource(
    "NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies", selector=_OURS
)
CONFIG_MAPS: Final = Resource("ConfigMap", "", "v1", "configmaps", selector=_OURS)
SECRETS: Final = Resource("Secret", "", "v1", "secrets")
"""Never listed nor watched: read by name."""
DEPLOYMENTS: Final = Resource("Deployment", "apps", "v1", "deployments", selector=_OF_A_CLUSTER)
NODES: Final = Resource("Node", "", "v1", "nodes", namespaced=False)
LEASES: Final = Resource("Lease", "coordination.k8s.io", "v1", "leases")
EVENTS: Final = Resource("Event", "events.k8s.io", "v1", "events")

WATCHED: Final = (
    *(NODES, CLUSTERS, CORES, PODS),
    *(SERVICES, NETWORK_POLICIES, CONFIG_MAPS, DEPLOYMENTS),
)
"""In the order they are listed: parents before children, so that a child that is not in a
later list is gone for sure."""

BY_KIND: Final = {resource.kind: resource for resource in (*WATCHED, SECRETS, LEASES, EVENTS)}
