"""The operator on a node cluster, installed by its chart as users do."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster import binaries
from devcluster.handle import ClusterHandle
from devcluster.locations import Locations
from support.eventually import eventually
from support.helm import CHART, NAMESPACE, Helm
from support.images import IMAGES, BuiltImage, build_images
from support.operator_process import CRDS, Kubectl

RELEASE = "enginecore"
SELECTOR = "app.kubernetes.io/name=enginecore,app.kubernetes.io/component=operator"
TORCH_IMAGE_ENV = "ENGINECORE_OPERATOR_TORCH_IMAGE"
ROLLOUT_SECONDS = 90.0
KEY_LAG_SECONDS = 15
"""The kubelet of these tests looks at files in pods every 5 to 7.5 s."""


@dataclass(frozen=True)
class Installation:
    """A running operator.

    Attributes:
        cluster: where it runs.
        namespace: its namespace.
        deployment: name of its Deployment.
    """

    cluster: ClusterHandle
    namespace: str
    deployment: str

    @property
    def kubectl(self) -> Kubectl:
        """kubectl in its namespace."""
        return Kubectl(self.cluster, self.namespace)

    @property
    def engine_image(self) -> str:
        """The image of engines whose spec names none."""
        found = {item["name"]: item.get("value", "") for item in self._container["env"]}
        return str(found[TORCH_IMAGE_ENV])

    @property
    def operator_image(self) -> str:
        """The image of the operator and of coordinators."""
        return str(self._container["image"])

    @property
    def _container(self) -> dict[str, Any]:
        tree = self.kubectl.get("deployment", self.deployment)
        (container,) = tree["spec"]["template"]["spec"]["containers"]
        return dict(container)

    def pods(self) -> list[dict[str, Any]]:
        """Return its pods."""
        return self.kubectl.find_all("pods", SELECTOR)

    def scale(self, replicas: int) -> None:
        """Set how many pods it has, and wait until it has them."""
        target = f"deployment/{self.deployment}"
        self.kubectl.run("scale", target, f"--replicas={replicas}")
        self.kubectl.run("rollout", "status", target, f"--timeout={ROLLOUT_SECONDS:.0f}s")
        eventually(lambda: len(self.pods()) == replicas, "operator pods", ROLLOUT_SECONDS, 0.3)

    def log(self, lines: int = 60) -> str:
        """Return the end of its log."""
        target = f"deployment/{self.deployment}"
        return self.kubectl.run("logs", target, f"--tail={lines}", check=False)


def find_installation(cluster: ClusterHandle) -> Installation | None:
    """Return the operator that runs on the cluster already, if there is one."""
    path = "jsonpath={range .items[*]}{.metadata.namespace} {.metadata.name}{end}"
    done = cluster.kubectl("get", "deployments", "-A", f"--selector={SELECTOR}", "-o", path)
    names = done.stdout.split()
    return Installation(cluster, *names) if names else None


@contextmanager
def installed(cluster: ClusterHandle, locations: Locations) -> Iterator[Installation]:
    """Build and load the images, install the chart, and remove everything at the end."""
    helm = Helm(binaries.build(["helm"], locations.cache, print)["helm"], cluster.kubeconfig)
    images = build_images(IMAGES, locations.images, print)
    for image in images.values():
        cluster.load_image(image.archive)
    helm.run(
        *("install", RELEASE, str(CHART), f"--namespace={NAMESPACE}", "--create-namespace"),
        *("--wait", "--timeout=3m", *_image_values(images)),
        f"--set=operator.keyLagSeconds={KEY_LAG_SECONDS}",
    )
    try:
        found = find_installation(cluster)
        assert found is not None
        yield found
    finally:
        helm.run("uninstall", RELEASE, f"--namespace={NAMESPACE}", "--wait", "--timeout=2m")
        cluster.kubectl("delete", "--ignore-not-found", "-f", str(CRDS))
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def _image_values(images: dict[str, BuiltImage]) -> Iterator[str]:
    for name, image in images.items():
        repository, _, tag = image.reference.rpartition(":")
        yield f"--set={name}.image.repository={repository}"
        yield f"--set={name}.image.tag={tag}"


def tiny_model_args() -> list[str]:
    """Return arguments of a torch engine that takes little of the machine."""
    return ["--kv-cache-bytes", str(64 << 20), "--threads", "1", "--max-num-seqs", "64"]


def model_source(directory: Path) -> dict[str, Any]:
    """Return spec.model for a checkpoint on this machine."""
    return {"name": directory.name, "source": {"hostPath": str(directory)}}
