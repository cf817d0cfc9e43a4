"""The client addresses of a cluster, and the ConfigMap that holds them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from enginecore_operator.api import labels
from enginecore_operator.api.status import ClientAddresses
from enginecore_operator.api.v1alpha1 import EngineClusterSpec
from enginecore_operator.plan import names
from enginecore_operator.plan.exposure import NOT_EXPOSED
from enginecore_operator.plan.observed import ObjectMeta, ObservedCore, ObservedObject
from enginecore_operator.plan.rendering import owner_reference
from enginecore_wire.contract import PUBLISH_PORT

NAMED_ADDRESSES_KEY = "client_addresses_dns.json"


def collect_addresses(
    replicas: int,
    cores: Mapping[int, ObservedCore],
    coordinator_service: ObservedObject | None,
    coordinator_key: str = "",
) -> ClientAddresses:
    """Collect the present addresses; index i is rank i, empty while it has none.

    `coordinator_service` is None where there is none, or engines cannot report to it.
    """
    cluster_ip = ""
    if coordinator_service is not None:
        cluster_ip = coordinator_service.raw.get("spec", {}).get("clusterIP", "")
    ranks = [cores.get(rank) for rank in range(replicas)]
    return ClientAddresses(
        input_address=[core.status.input_address if core else "" for core in ranks],
        output_address=[core.status.output_address if core else "" for core in ranks],
        stats_update_address=names.tcp_address(cluster_ip, PUBLISH_PORT),
        server_key=_server_keys(ranks),
        stats_server_key=(coordinator_key if cluster_ip else "") or None,
    )


def can_report(cores: Mapping[int, ObservedCore], coordinator_key: str) -> bool:
    """Tell whether all engines that have an address can report to the coordinator.

    With CURVE coming or going the coordinator is replaced at once, and engines one after another.
    It would take those it does not hear for idle, so clients are told of none meanwhile, and go by
    what each engine says of itself.
    """
    return all(
        (core.status.server_key != "") == (coordinator_key != "")
        for core in cores.values()
        if core.status.input_address
    )


def collect_exposed(
    spec: EngineClusterSpec, cores: Mapping[int, ObservedCore]
) -> ClientAddresses | None:
    """Collect the addresses for clients outside the cluster; None where none are to reach it."""
    if spec.transport.expose == NOT_EXPOSED:
        return None
    ranks = [cores.get(rank) for rank in range(spec.replicas)]
    return ClientAddresses(
        input_address=[core.status.exposed_input_address if core else "" for core in ranks],
        output_address=[core.status.exposed_output_address if core else "" for core in ranks],
        server_key=_server_keys(ranks),
    )


def _server_keys(ranks: Sequence[ObservedCore | None]) -> list[str] | None:
    """Return the key that each rank's pod has; None where no pod has one."""
    keys = [core.status.server_key if core else "" for core in ranks]
    return keys if any(keys) else None


def named_addresses(
    owner: ObjectMeta, spec: EngineClusterSpec, present: ClientAddresses, *, coordinated: bool
) -> ClientAddresses:
    """Return the addresses by DNS name: they stay as engines come and go, their keys need not."""
    hosts = [
        names.engine_host(names.core_name(owner.name, rank), owner.name, owner.namespace)
        for rank in range(spec.replicas)
    ]
    coordinator = f"{names.coordinator_name(owner.name)}.{owner.namespace}.svc"
    return ClientAddresses(
        input_address=[names.tcp_address(host, spec.transport.input_port) for host in hosts],
        output_address=[names.tcp_address(host, spec.transport.output_port) for host in hosts],
        stats_update_address=names.tcp_address(coordinator if coordinated else "", PUBLISH_PORT),
        server_key=present.server_key,
        stats_server_key=present.stats_server_key,
    )


def build_addresses_map(
    owner: ObjectMeta, spec: EngineClusterSpec, addresses: ClientAddresses, *, coordinated: bool
) -> dict[str, Any]:
    """Build the ConfigMap: one JSON document by IP, which clients follow, and one by name.

    `coordinated`: all engines can report to the coordinator.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.addresses_name(owner.name),
            "namespace": owner.namespace,
            "labels": {**names.common_labels(owner.name), labels.CLUSTER: owner.name},
            "ownerReferences": [owner_reference(labels.CLUSTER_KIND, owner)],
        },
        "data": {
            labels.ADDRESSES_KEY: _document(addresses),
            NAMED_ADDRESSES_KEY: _document(
                named_addresses(owner, spec, addresses, coordinated=coordinated)
            ),
        },
    }


def _document(addresses: ClientAddresses) -> str:
    found = msgspec.structs.asdict(addresses)
    given = {key: value for key, value in found.items() if value is not None}
    return msgspec.json.encode(given).decode()
