"""docs/metrics.md names exactly the metrics the code exports, with their types and labels."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from enginecore_client._metrics import Metrics
from enginecore_coordinator.loads import LoadBook
from enginecore_coordinator.metrics import CoordinatorMetrics, LoadCollector
from enginecore_operator.metrics import OperatorMetrics
from enginecore_server.metrics import ServerCollector
from enginecore_server.model_facts import ModelInputs
from enginecore_server.state import ServerState
from enginecore_wire.contract import ModelConfig, ServerConfig

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
ROW = re.compile(
    r"^\| `(?P<name>[^`]+)` \| (?P<type>\w+) \| (?P<labels>[^|]*) \| (?P<text>[^|]+) \|$"
)


class Exported(NamedTuple):
    """One metric as a scrape shows it."""

    name: str
    type: str
    labels: tuple[str, ...]


def of_client(registry: CollectorRegistry) -> None:
    Metrics(registry)


def of_operator(registry: CollectorRegistry) -> None:
    OperatorMetrics(registry)


def of_coordinator(registry: CollectorRegistry) -> None:
    CoordinatorMetrics(registry)
    registry.register(LoadCollector(LoadBook(1, 0.0), lambda: 0.0))


def of_server(registry: CollectorRegistry) -> None:
    config = ServerConfig(name="engine", model=ModelConfig(path="model"))
    ServerCollector(ServerState(config, ModelInputs(10), 0), registry)


PARTS: dict[str, Callable[[CollectorRegistry], None]] = {
    "Engine server": of_server,
    "Client": of_client,
    "Coordinator": of_coordinator,
    "Operator": of_operator,
}


def exported(part: str) -> set[Exported]:
    registry = CollectorRegistry()
    PARTS[part](registry)
    found = set()
    for collector in registry._collector_to_names:
        metrics = list(collector.collect())
        for metric in metrics:
            owner = collector if isinstance(collector, MetricWrapperBase) else metric
            labels: tuple[str, ...] = tuple(owner._labelnames)  # type: ignore[union-attr]
            suffix = "_total" if metric.type == "counter" else ""
            found.add(Exported(metric.name + suffix, metric.type, labels))
    return found


def sections() -> dict[str, list[re.Match[str]]]:
    found: dict[str, list[re.Match[str]]] = {}
    title = ""
    for line in DOCUMENT.read_text().splitlines():
        if line.startswith("## "):
            title = line.removeprefix("## ")
        elif line.startswith("| `"):
            row = ROW.match(line)
            assert row, f"not a row of four cells: {line}"
            found.setdefault(title, []).append(row)
    return found


@pytest.mark.parametrize("part", PARTS)
def test_every_metric_is_documented_as_it_is_exported(part: str) -> None:
    rows = sections()[part]
    documented = {
        Exported(row["name"], row["type"], tuple(re.findall(r"`(\w+)`", row["labels"])))
        for row in rows
    }
    assert len(rows) == len(documented), "a metric is documented twice"
    assert documented == exported(part)


def test_document_has_no_other_tables() -> None:
    assert set(sections()) == set(PARTS)
