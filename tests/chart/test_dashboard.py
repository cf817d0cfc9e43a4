"""Every query of the dashboard returns data from a real Prometheus that scrapes engines at work."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from enginecore_client import AsyncMPClient, SamplingParams
from support.checkpoint import fetch_checkpoint
from support.dashboard import (
    DASHBOARD,
    POD_LABEL,
    POLL_SECONDS,
    QUERY_SECONDS,
    fill,
    pod_monitors,
    scrape_config,
    wait_for_all_queries,
)
from support.eventually import eventually_async
from support.helm import Helm
from support.pod import Pod, client_addresses, torch_config
from support.prometheus import Prometheus, running_prometheus

pytestmark = [pytest.mark.chart, pytest.mark.model, pytest.mark.timeout(240)]

PANELS = {
    "Running requests": "vllm:num_requests_running",
    "Waiting requests": "vllm:num_requests_waiting",
    "Generated tokens": "vllm:generation_tokens_total",
    "KV cache": "vllm:kv_cache_usage_perc",
    "Time to first token": "vllm:time_to_first_token_seconds_bucket",
}
NAMESPACE, CLUSTER, RANKS = "default", "smollm2", (0, 1)
PER_ENGINE = [
    (target["expr"], set(re.findall(r"{{(\w+)}}", target["legendFormat"])))
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
    if "{{engine}}" in target["legendFormat"]
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
    found = [
        {
            "targets": [f"127.0.0.1:{pod.http_port}"],
            "labels": {
                "__meta_kubernetes_namespace": NAMESPACE,
                "__meta_kubernetes_pod_name": f"{CLUSTER}-{rank}-1",
                "__meta_kubernetes_pod_container_port_name": "http",
                f"{POD_LABEL}enginecore_dev_cluster": CLUSTER,
                f"{POD_LABEL}enginecore_dev_component": "engine",
            },
        }
        for rank, pod in zip(RANKS, pods, strict=True)
    ]
    config = scrape_config(pod_monitors(helm)["engine"], found)
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), [config]) as running:
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


@pytest.mark.parametrize(("title", "metric"), PANELS.items(), ids=PANELS)
def test_each_engine_has_this_panel(title: str, metric: str) -> None:
    (panel,) = [panel for panel in DASHBOARD["panels"] if panel["title"] == title]
    queries = [target["expr"] for target in panel["targets"]]
    assert queries
    assert all(re.search(rf"{metric}\b", query) for query in queries)
    assert all("{{engine}}" in target["legendFormat"] for target in panel["targets"])


async def test_every_query_returns_data(pods: list[Pod], prometheus: Prometheus) -> None:
    async with load(pods):
        await wait_for_all_queries(prometheus)


@pytest.mark.parametrize(("query", "legend"), PER_ENGINE)
async def test_each_engine_has_its_series(
    pods: list[Pod], prometheus: Prometheus, query: str, legend: set[str]
) -> None:
    async def series(**chosen: str) -> set[str]:
        samples = await asyncio.to_thread(prometheus.query, fill(query, **chosen))
        assert all(legend <= sample["metric"].keys() for sample in samples)
        return {sample["metric"]["engine"] for sample in samples}

    async def both() -> bool:
        return await series() == {"0", "1"}

    async with load(pods):
        await eventually_async(both, "a series for each engine", QUERY_SECONDS, POLL_SECONDS)
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
    expression, label = fill(match[1]), match[2]

    async def complete() -> bool:
        samples = await asyncio.to_thread(prometheus.query, expression)
        return {sample["metric"][label] for sample in samples} == found[variable["name"]]

    await eventually_async(complete, "the variable's values", QUERY_SECONDS, POLL_SECONDS)
