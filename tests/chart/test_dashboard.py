"""Every query of the dashboard returns data from a real Prometheus that scrapes engines at work."""

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from enginecore_client import AsyncMPClient, SamplingParams
from support.checkpoint import fetch_checkpoint
from support.eventually import eventually_async
from support.helm import CHART, POD_MONITOR_API, Helm, find
from support.pod import Pod, client_addresses, torch_config
from support.prometheus import Prometheus, Target, running_prometheus

pytestmark = [pytest.mark.chart, pytest.mark.model, pytest.mark.timeout(240)]

DASHBOARD: dict[str, Any] = json.loads((CHART / "dashboards/enginecore.json").read_text())
NAMESPACE, CLUSTER, RANKS = "default", "smollm2", (0, 1)
QUERY_SECONDS = 60.0


def filled(expression: str, **chosen: str) -> str:
    """Put values in for the dashboard's variables, as Grafana does; All where none is given."""
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            name = variable["name"]
            expression = expression.replace(f"${name}", chosen.get(name, variable["allValue"]))
    expression = expression.replace("$__rate_interval", "10s")
    assert "$" not in expression
    return expression


def relabelings(helm: Helm) -> list[dict[str, Any]]:
    """Return the PodMonitor's own, after those the Prometheus operator adds to every one."""
    objects = helm.render("monitoring.podMonitor.enabled=true", options=(POD_MONITOR_API,))
    (endpoint,) = find(objects, "PodMonitor", "-engine")["spec"]["podMetricsEndpoints"]
    added = [
        {"sourceLabels": ["__meta_kubernetes_namespace"], "targetLabel": "namespace"},
        {"sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "pod"},
    ]
    snake = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    assert all(item.keys() <= snake.keys() for item in endpoint["relabelings"])
    return [
        {snake[key]: value for key, value in item.items()}
        for item in added + endpoint["relabelings"]
    ]


@pytest.fixture(scope="module")
def pods() -> Iterator[list[Pod]]:
    checkpoint = fetch_checkpoint()
    started = [Pod(torch_config(checkpoint, rank=rank, cluster=CLUSTER)) for rank in RANKS]
    try:
        for pod in started:
            pod.wait_ready()
        yield started
    finally:
        for pod in started:
            pod.close()


@pytest.fixture(scope="module")
def prometheus(
    helm: Helm, pods: list[Pod], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    targets = [
        Target(
            f"127.0.0.1:{pod.http_port}",
            {
                "__meta_kubernetes_namespace": NAMESPACE,
                "__meta_kubernetes_pod_name": f"{CLUSTER}-{rank}-1",
                "__meta_kubernetes_pod_label_enginecore_dev_cluster": CLUSTER,
            },
        )
        for rank, pod in zip(RANKS, pods, strict=True)
    ]
    directory = tmp_path_factory.mktemp("prometheus")
    with running_prometheus(directory, targets, relabelings(helm)) as running:
        yield running


@asynccontextmanager
async def load(pods: list[Pod]) -> AsyncIterator[None]:
    """Keep four requests running on every engine."""
    params = SamplingParams(temperature=0.8, max_tokens=24, ignore_eos=True)

    async def keep_asking(client: AsyncMPClient, rank: int) -> None:
        while True:
            async for _ in client.generate([504, 260, 3575], params, data_parallel_rank=rank):
                pass

    async with AsyncMPClient(client_addresses(pods)) as client:
        tasks = [asyncio.create_task(keep_asking(client, rank)) for rank in RANKS * 4]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_every_query_returns_data(pods: list[Pod], prometheus: Prometheus) -> None:
    empty = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    }

    async def all_answered() -> bool:
        for name, expression in list(empty.items()):
            samples = await asyncio.to_thread(prometheus.query, filled(expression))
            if samples and not any(math.isnan(float(s["value"][1])) for s in samples):
                del empty[name]
        assert not empty, f"no data: {', '.join(empty)}"
        return True

    async with load(pods):
        await eventually_async(all_answered, "every query returns data", QUERY_SECONDS, 0.5)


PER_ENGINE = [
    (target["expr"], set(re.findall(r"{{(\w+)}}", target["legendFormat"])))
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
    if "{{engine}}" in target["legendFormat"]
]


@pytest.mark.parametrize(("query", "legend"), PER_ENGINE)
async def test_each_engine_has_its_series(
    pods: list[Pod], prometheus: Prometheus, query: str, legend: set[str]
) -> None:
    async def series(**chosen: str) -> set[str]:
        samples = await asyncio.to_thread(prometheus.query, filled(query, **chosen))
        assert all(legend <= sample["metric"].keys() for sample in samples)
        return {sample["metric"]["engine"] for sample in samples}

    async def both() -> bool:
        return await series() == {"0", "1"}

    async with load(pods):
        await eventually_async(both, "a series for each engine", QUERY_SECONDS, 0.5)
        assert await series(engine="1") == {"1"}
        assert await series(cluster="another") == set()
        assert await series(namespace="another") == set()


@pytest.mark.parametrize("variable", DASHBOARD["templating"]["list"], ids=lambda v: v["name"])
async def test_the_variables_find_their_values(
    pods: list[Pod], prometheus: Prometheus, variable: dict[str, Any]
) -> None:
    found = {"namespace": {NAMESPACE}, "cluster": {CLUSTER}, "engine": {"0", "1"}}
    if variable["type"] == "datasource":
        assert variable["query"] == "prometheus"
        return
    match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
    assert match is not None
    expression, label = filled(match[1]), match[2]

    async def complete() -> bool:
        samples = await asyncio.to_thread(prometheus.query, expression)
        return {sample["metric"][label] for sample in samples} == found[variable["name"]]

    await eventually_async(complete, "the variable's values", QUERY_SECONDS, 0.5)
