"""A namespace of a node cluster, and the EngineClusters in it as tests see them."""

import base64
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import client as kubernetes_client
from kubernetes import config as kubernetes_config

from devcluster.handle import ClusterHandle
from devcluster.kubeapi import KubeApi
from enginecore_client import ClusterSource
from support.eventually import eventually
from support.operator_cluster import GROUP, engine_cluster
from support.operator_process import Kubectl

ENGINES = "enginecore.dev/component=engine"
LOG_LINES = 60
POLL_SECONDS = 0.2
START_SECONDS = 120.0
PREFIXES = {
    "pods": "api/v1",
    "events": "apis/events.k8s.io/v1",
    "endpointslices": "apis/discovery.k8s.io/v1",
    "enginecores": f"apis/{GROUP}",
    "engineclusters": f"apis/{GROUP}",
}

Tree = dict[str, Any]


@dataclass(frozen=True)
class Space:
    """One namespace: kubectl for what users do, plain requests for what tests look at often."""

    cluster: ClusterHandle
    name: str

    @property
    def kubectl(self) -> Kubectl:
        """kubectl in this namespace."""
        return Kubectl(self.cluster, self.name)

    def get(self, plural: str, name: str) -> Tree | None:
        """Return an object, or None."""
        found: Tree | None = self._api().get(self._path(plural, name))
        return found

    def find_all(self, plural: str) -> list[Tree]:
        """Return all objects of a kind."""
        listing = self._api().get(self._path(plural))
        items: list[Tree] = listing["items"]
        return items

    def events(self, about: str) -> list[Tree]:
        """Return the Events about an object of this name, oldest first."""
        found = [e for e in self.find_all("events") if e["regarding"]["name"] == about]
        return sorted(found, key=lambda event: event.get("eventTime") or "")

    def everything(self) -> dict[str, str]:
        """Return kind and name → resource version of all that can be listed here."""
        kinds = self.kubectl.run(
            "api-resources", "--namespaced", "--verbs=list", "--output=name"
        ).split()
        columns = "custom-columns=K:.kind,N:.metadata.name,V:.metadata.resourceVersion"
        kinds = [kind for kind in kinds if not kind.startswith("events")]
        rows = self.kubectl.run("get", ",".join(kinds), "-o", columns, "--no-headers")
        fields = [row.split() for row in rows.splitlines() if len(row.split()) == 3]
        return {f"{kind}/{name}": version for kind, name, version in fields}

    def describe(self) -> str:
        """Return what a person would look at first."""
        kinds, time = "engineclusters,enginecores,pods", ".metadata.creationTimestamp"
        columns = f"custom-columns=AT:{time},ABOUT:.involvedObject.name,TEXT:.message"
        looks = (
            (kinds, "--output=wide"),
            ("events", f"--output={columns}", f"--sort-by={time}"),
        )
        seen = [self.kubectl.run("get", *look, check=False) for look in looks]
        logs = ("logs", f"--selector={ENGINES}", "--prefix", f"--tail={LOG_LINES}")
        return "\n".join([*seen, self.kubectl.run(*logs, check=False)])

    def api_client(self) -> Any:
        """Return a client of the kubernetes package; whoever takes it closes it."""
        configuration = kubernetes_client.Configuration()
        kubernetes_config.load_kube_config(
            str(self.cluster.kubeconfig), client_configuration=configuration
        )
        return kubernetes_client.ApiClient(configuration)

    def _api(self) -> KubeApi:
        directory = self.cluster.directory
        view = json.loads(self.cluster.kubeconfig.read_text())
        server = view["clusters"][0]["cluster"]["server"]
        token = view["users"][0]["user"]["token"]
        return KubeApi(server, directory.pki / "ca.crt", token)

    def _path(self, plural: str, name: str = "") -> str:
        tail = f"/{name}" if name else ""
        return f"/{PREFIXES[plural]}/namespaces/{self.name}/{plural}{tail}"


@contextmanager
def temporary_space(cluster: ClusterHandle) -> Iterator[Space]:
    """Create a namespace; delete it at the end of the block, without waiting for its end."""
    name = f"e2e-{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", name)
    try:
        yield Space(cluster, name)
    finally:
        cluster.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false")


@dataclass(frozen=True)
class Engines:
    """One EngineCluster and what the operator made of it."""

    space: Space
    name: str

    def apply(self, **spec: Any) -> None:
        """Apply the EngineCluster."""
        self.space.kubectl.apply(engine_cluster(self.name, **spec))

    def scale(self, replicas: int) -> None:
        """Change the number of engines as users do."""
        self.space.kubectl.run("scale", "enginecluster", self.name, f"--replicas={replicas}")

    def status(self) -> Tree:
        """Return the status; empty while it is behind the spec."""
        found = self.space.get("engineclusters", self.name)
        assert found is not None
        status: Tree = found.get("status", {})
        current = status.get("observedGeneration") == found["metadata"]["generation"]
        return status if current else {}

    def wait_ready(self, replicas: int, deadline: float = START_SECONDS) -> Tree:
        """Wait until exactly so many engines are there and ready; return the status."""

        def ready() -> Tree | None:
            status = self.status()
            counts = {status.get(key) for key in ("replicas", "readyReplicas", "desiredReplicas")}
            addresses = status.get("clientAddresses", {}).get("input_address", [])
            settled = counts == {replicas} and len(addresses) == replicas and all(addresses)
            return status if settled else None

        found = eventually(ready, f"{replicas} engines of {self.name}", deadline, POLL_SECONDS)
        assert found is not None
        return found

    def core(self, rank: int) -> Tree:
        """Return the EngineCore of a rank."""
        found = self.space.get("enginecores", f"{self.name}-{rank}")
        assert found is not None, f"no EngineCore of rank {rank}"
        return found

    def cores(self) -> list[str]:
        """Return the names of its EngineCores."""
        mine = [c["metadata"] for c in self.space.find_all("enginecores")]
        return sorted(m["name"] for m in mine if m["name"].startswith(f"{self.name}-"))

    def epoch(self, rank: int) -> int:
        """Return the epoch of a rank; 0 before the first."""
        return int(self.core(rank).get("status", {}).get("epoch", 0))

    def wait_epoch(self, rank: int, epoch: int, deadline: float = START_SECONDS) -> Tree:
        """Wait until the pod of an epoch is ready; return the EngineCore's status."""
        wanted = (epoch, "Ready")

        def ready() -> Tree | None:
            status: Tree = self.core(rank).get("status", {})
            return status if (status.get("epoch"), status.get("phase")) == wanted else None

        found = eventually(ready, f"epoch {epoch} of rank {rank}", deadline, POLL_SECONDS)
        assert found is not None
        return found

    def pod(self, rank: int) -> Tree:
        """Return the pod of the present epoch of a rank."""
        name = f"{self.name}-{rank}-{self.epoch(rank)}"
        found = self.space.get("pods", name)
        assert found is not None, f"no pod {name}"
        return found

    def key_options(self, directory: Path, role: str = "client") -> dict[str, str]:
        """Return what a client is told of its key, which is then in a directory; nothing where the
        engines speak without CURVE."""
        found = self.space.get("engineclusters", self.name)
        if found is None or found["spec"]["transport"].get("security") != "Curve":
            return {}
        secret = self.space.kubectl.get("secret", f"{self.name}-{role}")
        file = directory / f"{self.space.name}-{self.name}-{role}"
        file.write_bytes(base64.b64decode(secret["data"]["secret-key"]))
        return {"client_key": str(file)}

    def source(self, api_client: Any) -> ClusterSource:
        """Return its addresses, followed live."""
        return ClusterSource(self.name, self.space.name, api_client)
