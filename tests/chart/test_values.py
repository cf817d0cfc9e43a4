"""Values: wrong ones are refused by path, and every one is described and touched by a scenario."""

import json
from typing import Any

import pytest
import yaml

from support.helm import CHART, SCENARIOS, Helm

pytestmark = pytest.mark.chart

WRONG = {
    "negative replicas": ("operator.replicas=-1", "/operator/replicas", "minimum"),
    "too many replicas": ("operator.replicas=11", "/operator/replicas", "maximum"),
    "replicas as text": ("operator.replicas=two", "/operator/replicas", "want integer"),
    "unknown key": ("operator.replica=2", "/operator", "'replica' not allowed"),
    "unknown section": ("oprator.replicas=2", "''", "'oprator' not allowed"),
    "repository with tag": ("operator.image.repository=a/b:1", "/operator/image/repository", "a/b"),
    "tag with a space": ("engine.image.tag=a b", "/engine/image/tag", "'a b'"),
    "no tag for vllm": ("vllm.image.tag=", "/vllm/image/tag", "''"),
    "pull policy": ("operator.image.pullPolicy=Later", "/operator/image/pullPolicy", "'Always'"),
    "log level": ("operator.logLevel=verbose", "/operator/logLevel", "'DEBUG'"),
    "boolean as text": ("crds.keep=nope", "/crds/keep", "want boolean"),
    "interval": ("monitoring.podMonitor.interval=often", "/monitoring/podMonitor", "'often'"),
    "namespace": ("monitoring.dashboard.namespace=A_b", "/monitoring/dashboard", "'A_b'"),
    "requests": (
        "operator.resources.requests.cpu=lots",
        "/operator/resources/requests/cpu",
        "'lots'",
    ),
    "limits": (
        "operator.resources.limits.memory=-1",
        "/operator/resources/limits/memory",
        "minimum",
    ),
    "nameless pull secret": ("imagePullSecrets[0].nam=x", "/imagePullSecrets/0", "'name'"),
}


@pytest.mark.parametrize(("value", "path", "word"), WRONG.values(), ids=WRONG)
def test_wrong_value_is_refused_by_path(helm: Helm, value: str, path: str, word: str) -> None:
    done = helm.run("template", "x", str(CHART), f"--set={value}", check=False)
    assert done.returncode != 0
    assert path in done.stderr
    assert word in done.stderr


def leaves(tree: dict[str, Any], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for key, value in tree.items():
        nested = isinstance(value, dict) and value
        found |= leaves(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}"}
    return found


def is_described(path: str) -> bool:
    """Tell whether the schema knows the value, and describes it or what it is part of."""
    node: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    described = False
    for key in path.split("."):
        node = node.get("properties", {}).get(key, {})
        described = described or "description" in node
    return described


DEFAULTS = leaves(yaml.safe_load((CHART / "values.yaml").read_text()))


@pytest.mark.parametrize("path", sorted(DEFAULTS))
def test_every_value_is_in_the_schema_with_a_description(path: str) -> None:
    assert is_described(path)


def test_the_scenarios_touch_every_value() -> None:
    touched: set[str] = set()
    for scenario in SCENARIOS:
        tree = yaml.safe_load((CHART / f"ci/{scenario}-values.yaml").read_text()) or {}
        touched |= {f"{path}." for path in leaves(tree)}
    # A map such as nodeSelector is touched where anything inside it is set.
    assert [path for path in DEFAULTS if not any(t.startswith(f"{path}.") for t in touched)] == []
