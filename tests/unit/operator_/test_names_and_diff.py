"""Names fit into DNS labels; differences are found and named."""

from decimal import Decimal
from typing import Any

import pytest

from enginecore_operator.api.crdgen import NAME_RULES
from enginecore_operator.api.lifecycle import MAX_REPLICAS
from enginecore_operator.plan import names
from enginecore_operator.plan.diff import first_difference, parse_quantity

LABEL = 63


def test_longest_names_fit() -> None:
    cluster = "c" * NAME_RULES["EngineCluster"][0]
    core = names.core_name(cluster, MAX_REPLICAS - 1)
    assert len(core) <= NAME_RULES["EngineCore"][0]
    by_hand = "e" * NAME_RULES["EngineCore"][0]
    assert len(names.pod_name(by_hand, 10**9)) <= LABEL
    assert len(names.engines_service_name(cluster)) <= LABEL
    assert len(names.addresses_name(cluster)) <= LABEL
    # A Deployment's pods get the hash of their ReplicaSet and five more characters.
    assert len(names.coordinator_name(cluster)) + 1 + 10 + 1 + 5 <= LABEL + 6


@pytest.mark.parametrize(
    ("host", "address"),
    [("10.0.0.1", "tcp://10.0.0.1:5"), ("fd00::1", "tcp://[fd00::1]:5"), ("", "")],
)
def test_addresses(host: str, address: str) -> None:
    assert names.tcp_address(host, 5) == address


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("500m", Decimal("0.5")),
        ("1.5Gi", 1.5 * 2**30),
        ("2k", 2000),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("1e3", 1000),
        ("12E-1", Decimal("1.2")),
        (".5", Decimal("0.5")),
        ("lots", None),
        ("-1", None),
        ("1 Gi", None),
    ],
)
def test_quantities(text: str, value: Any) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    ("wanted", "there", "text"),
    [
        ({"a": 1}, {"a": 1, "defaulted": True}, None),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "a.b: 2 -> 1"),
        ({"a": 1}, {}, "a: unset -> 1"),
        ({"a": []}, {}, None),
        ({"a": [1, 2]}, {"a": [1]}, "a: [1] -> [1, 2]"),
        ({"a": [{"n": "x"}]}, {"a": [{"n": "y", "z": 1}]}, "a[0].n: 'y' -> 'x'"),
        ({"cpu": "1000m"}, {"cpu": "1"}, None),
        ({"cpu": 1}, {"cpu": "1"}, None),
        ({"cpu": "1Gi"}, {"cpu": "1G"}, "cpu: '1G' -> '1Gi'"),
        ({"on": True}, {"on": 1}, None),
        ({"a": "x" * 200}, {"a": ""}, f"a: '' -> '{'x' * 76}..."),
    ],
)
def test_first_difference(wanted: Any, there: Any, text: str | None) -> None:
    found = first_difference(wanted, there)
    assert (None if found is None else str(found)) == text
