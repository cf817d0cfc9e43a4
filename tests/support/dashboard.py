"""The chart's dashboard and PodMonitors, as Grafana and the Prometheus operator read them."""

import asyncio
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from support.eventually import eventually_async
from support.helm import CHART, POD_MONITOR_API, Helm
from support.prometheus import Prometheus

DASHBOARD: dict[str, Any] = json.loads((CHART / "dashboards/enginecore.json").read_text())
QUERIES = {
    f"{panel['title']} {target['refId']}": target["expr"]
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
}
POD_LABEL = "__meta_kubernetes_pod_label_"
QUERY_SECONDS = 60.0
POLL_SECONDS = 0.5

Tree = dict[str, Any]


def fill(expression: str, **chosen: str) -> str:
    """Put values in for the dashboard's variables, as Grafana does; All where none is given."""
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            name = variable["name"]
            expression = expression.replace(f"${name}", chosen.get(name, variable["allValue"]))
    expression = expression.replace("$__rate_interval", "10s")
    assert "$" not in expression
    return expression


async def wait_for_all_queries(prometheus: Prometheus) -> None:
    """Return once every query of the dashboard has given numbers.

    Raises:
        AssertionError: some gave none in QUERY_SECONDS; the text names them.
    """
    empty = dict(QUERIES)

    async def answered() -> bool:
        for name, expression in list(empty.items()):
            samples = await asyncio.to_thread(prometheus.query, fill(expression))
            if samples and not any(math.isnan(float(s["value"][1])) for s in samples):
                del empty[name]
        assert not empty, f"no data: {', '.join(empty)}"
        return True

    await eventually_async(answered, "every query returns data", QUERY_SECONDS, POLL_SECONDS)


def pod_monitors(helm: Helm) -> dict[str, Tree]:
    """Return the chart's PodMonitors by the end of their name: engine, coordinator, operator."""
    objects = helm.render("monitoring.podMonitor.enabled=true", options=(POD_MONITOR_API,))
    found = [item for item in objects if item["kind"] == "PodMonitor"]
    return {item["metadata"]["name"].rpartition("-")[2]: item for item in found}


def discovered(pods: Sequence[Tree]) -> list[Tree]:
    """Return static_configs with the labels Prometheus would have discovered for these pods.

    Debian's Prometheus is built without Kubernetes service discovery.
    """
    return [
        {
            "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
            "labels": {
                "__meta_kubernetes_namespace": pod["metadata"]["namespace"],
                "__meta_kubernetes_pod_name": pod["metadata"]["name"],
                "__meta_kubernetes_pod_container_port_name": port.get("name", ""),
                **{
                    POD_LABEL + re.sub(r"\W", "_", key): value
                    for key, value in pod["metadata"]["labels"].items()
                },
            },
        }
        for pod in pods
        for container in pod["spec"]["containers"]
        for port in container.get("ports", [])
    ]


def scrape_config(monitor: Tree, static_configs: Sequence[Tree]) -> Tree:
    """Turn a PodMonitor into what the Prometheus operator makes of it.

    Args:
        monitor: the PodMonitor.
        static_configs: the pods to choose from, with all labels that discovery gives.
    """
    spec = monitor["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    assert endpoint.keys() <= {"port", "path", "interval", "relabelings"}
    port = "__meta_kubernetes_pod_container_port_name"
    return {
        "job_name": f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}",
        "metrics_path": endpoint["path"],
        "relabel_configs": [
            *(
                {
                    "action": "keep",
                    "source_labels": [POD_LABEL + re.sub(r"\W", "_", key)],
                    "regex": value,
                }
                for key, value in spec["selector"]["matchLabels"].items()
            ),
            {"action": "keep", "source_labels": [port], "regex": endpoint["port"]},
            {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
            {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
            *(_relabeling(item) for item in endpoint.get("relabelings", [])),
        ],
        "static_configs": list(static_configs),
    }


def _relabeling(item: Tree) -> Tree:
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    assert item.keys() <= names.keys()
    return {names[key]: value for key, value in item.items()}
