"""The coordinator's Deployment: how it is probed, and what it requests."""

from typing import Any

import msgspec
import pytest

from enginecore_operator.api.v1alpha1 import Coordinator
from enginecore_operator.plan.coordinator import build_coordinator
from support.operator_objects import RENDERING, observed_cluster


def container(**coordinator: Any) -> dict[str, Any]:
    spec = msgspec.convert(coordinator, Coordinator)
    deployment = build_coordinator(observed_cluster().metadata, spec, RENDERING)
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def patience(probe: dict[str, Any]) -> int:
    """Return for how many seconds a probe may fail."""
    return int(probe["periodSeconds"] * probe["failureThreshold"])


def test_a_slow_start_is_waited_for() -> None:
    found = container()
    assert patience(found["startupProbe"]) >= 300
    assert patience(found["livenessProbe"]) >= 60
    assert found["startupProbe"]["httpGet"] == found["livenessProbe"]["httpGet"]


DEFAULT = {"cpu": "20m", "memory": "64Mi"}


@pytest.mark.parametrize(
    ("given", "requests"),
    [
        ({}, DEFAULT),
        ({"requests": {"cpu": "1"}}, {"cpu": "1", "memory": "64Mi"}),
        # Kubernetes takes a limit without a request for both.
        ({"limits": {"memory": "32Mi"}}, {"cpu": "20m"}),
        ({"limits": {"cpu": "1", "memory": "32Mi"}}, None),
    ],
    ids=["nothing", "a request", "a limit", "all limits"],
)
def test_it_is_never_best_effort(given: dict[str, Any], requests: dict[str, str] | None) -> None:
    resources = container(resources=given)["resources"]
    assert resources.get("requests") == requests
    assert resources.get("limits") == given.get("limits")
