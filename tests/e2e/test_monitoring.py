"""A real Prometheus finds the demo's pods by the chart's PodMonitors; the dashboard shows them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import binaries
from devcluster.locations import Locations
from enginecore_client import AsyncMPClient, SamplingParams
from support.dashboard import (
    POLL_SECONDS,
    discovered,
    pod_monitors,
    scrape_config,
    wait_for_all_queries,
)
from support.eventually import eventually
from support.helm import Helm
from support.installation import Installation
from support.prometheus import Prometheus, running_prometheus
from support.space import Engines

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.model,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("installation"),
]

UP_SECONDS = 60.0
RANKS = (0, 1)


@pytest.fixture(scope="module")
def prometheus(
    installation: Installation, smollm: Engines, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    helm = Helm(binaries.build(["helm"], Locations.from_environment().cache, print)["helm"])
    pods = discovered([*smollm.space.find_all("pods"), *installation.pods()])
    configs = [scrape_config(monitor, pods) for monitor in pod_monitors(helm).values()]
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), configs) as running:
        yield running


def test_every_kind_of_pod_is_found_once_and_scraped(
    prometheus: Prometheus, smollm: Engines
) -> None:
    pod_names = [smollm.pod(rank)["metadata"]["name"] for rank in RANKS]

    def targets() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for sample in prometheus.query("up == 1"):
            job = sample["metric"]["job"].rpartition("-")[2]
            found.setdefault(job, []).append(sample["metric"]["pod"])
        assert found.keys() == {"engine", "coordinator", "operator"}
        assert sorted(found["engine"]) == sorted(pod_names)
        assert len(found["coordinator"]) == 1
        return found

    eventually(targets, "engines, coordinator and operator are scraped", UP_SECONDS, POLL_SECONDS)
    clusters = prometheus.query("count by (engine_cluster) (up{engine_cluster!=''})")
    assert [sample["metric"]["engine_cluster"] for sample in clusters] == [smollm.name]


async def test_the_dashboard_shows_the_pods_under_load(
    prometheus: Prometheus, smollm: Engines, tmp_path: Path
) -> None:
    params = SamplingParams(temperature=0.8, max_tokens=24, ignore_eos=True)

    async def keep_asking(client: AsyncMPClient, rank: int) -> None:
        while True:
            async for _ in client.generate([504, 260, 3575], params, data_parallel_rank=rank):
                pass

    own_key = smollm.key_options(tmp_path)
    async with AsyncMPClient(smollm.status()["clientAddresses"], **own_key) as client:
        tasks = [asyncio.create_task(keep_asking(client, rank)) for rank in RANKS * 4]
        try:
            await wait_for_all_queries(prometheus)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
