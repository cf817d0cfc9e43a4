"""helm's command line, and the chart as tests render it."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/enginecore"
NAMESPACE = "enginecore-system"
SCENARIOS = sorted(path.name.removesuffix("-values.yaml") for path in CHART.glob("ci/*.yaml"))
POD_MONITOR_API = "--api-versions=monitoring.coreos.com/v1/PodMonitor"


@dataclass(frozen=True)
class Helm:
    """helm's command line; `kubeconfig` is None where it only renders."""

    program: Path
    kubeconfig: Path | None = None

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run helm; with `check`, a failure fails the test with what helm said."""
        command = [str(self.program), *arguments]
        if self.kubeconfig is not None:
            command.append(f"--kubeconfig={self.kubeconfig}")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done

    def render(
        self, *sets: str, scenario: str = "default", options: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Return the objects of `helm template` for a file of ci/ and values set on top of it."""
        done = self.run(
            "template",
            "enginecore",
            str(CHART),
            f"--namespace={NAMESPACE}",
            f"--values={CHART}/ci/{scenario}-values.yaml",
            *(f"--set={item}" for item in sets),
            *options,
        )
        return [item for item in yaml.safe_load_all(done.stdout) if item]


def find(objects: Sequence[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    """Return the one object of the kind (whose name ends so)."""
    found = [
        item for item in objects if item["kind"] == kind and item["metadata"]["name"].endswith(name)
    ]
    assert len(found) == 1, f"{len(found)} objects of kind {kind} with a name that ends in {name!r}"
    return found[0]
