"""Every sample is accepted as it is by a real API server, strictly."""

from pathlib import Path

import pytest

from devcluster.handle import ClusterHandle
from support.helm import ROOT

pytestmark = [pytest.mark.chart, pytest.mark.usefixtures("chart_cluster")]

SAMPLES = sorted((ROOT / "manifests/samples").glob("*.yaml"))


@pytest.fixture(scope="module")
def definitions(chart_cluster: ClusterHandle) -> None:
    chart_cluster.kubectl("apply", "--server-side", "-f", str(ROOT / "manifests/crds"))
    chart_cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_sample_is_accepted(chart_cluster: ClusterHandle, definitions: None, sample: Path) -> None:
    chart_cluster.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "--namespace=default", "-f", str(sample)
    )
