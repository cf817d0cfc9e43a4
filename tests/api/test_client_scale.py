"""A client that follows an EngineCluster scales it, through a real API server."""

import pytest
from kubernetes import client as kubernetes_client
from kubernetes import config

from enginecore_client import AsyncMPClient, ClusterSource, ScalingNotAvailable
from support.eventually import eventually
from support.operator_cluster import engine_cluster
from support.operator_process import Kubectl, OperatorRunner

pytestmark = [pytest.mark.api, pytest.mark.timeout(180)]


async def scale(source: ClusterSource, size: int) -> None:
    client = AsyncMPClient(source)
    try:
        await client.scale_elastic_ep(size)
    finally:
        await client.aclose()


async def test_scale_elastic_ep(kubectl: Kubectl, runner: OperatorRunner) -> None:
    runner.start()
    kubectl.apply(engine_cluster(replicas=1))
    configuration = kubernetes_client.Configuration()
    config.load_kube_config(str(kubectl.cluster.kubeconfig), client_configuration=configuration)
    api_client = kubernetes_client.ApiClient(configuration)
    try:
        for size in (3, 1):
            await scale(ClusterSource("smollm", kubectl.namespace, api_client), size)
            eventually(
                lambda n=size: len(kubectl.find_all("enginecores")) == n, f"{size} ranks", 60.0
            )
        with pytest.raises(ScalingNotAvailable, match="it does not exist"):
            await scale(ClusterSource("other", kubectl.namespace, api_client), 2)
    finally:
        api_client.rest_client.pool_manager.clear()
