"""Reconcile one EngineCluster: its EngineCores, Services, NetworkPolicies, coordinator and client
addresses.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from enginecore_operator.api import labels
from enginecore_operator.api.conditions import ConditionType, Reason, find_condition, is_true
from enginecore_operator.api.status import EngineClusterStatus
from enginecore_operator.api.v1alpha1 import EngineClusterSpec
from enginecore_operator.api.validate import InvalidSpecError, read_spec
from enginecore_operator.plan import cluster_status, names
from enginecore_operator.plan.actions import (
    Action,
    Apply,
    Create,
    Delete,
    Event,
    ObjectRef,
    Plan,
)
from enginecore_operator.plan.addresses import (
    build_addresses_map,
    can_report,
    collect_addresses,
    collect_exposed,
)
from enginecore_operator.plan.cluster_keys import coordinator_key, find_keyring, keys_before
from enginecore_operator.plan.coordinator import build_coordinator
from enginecore_operator.plan.cores import build_core, core_spec, read_core_spec, spec_document
from enginecore_operator.plan.diff import Difference, first_difference
from enginecore_operator.plan.keys import Keyring
from enginecore_operator.plan.network_policy import work_on_cluster
from enginecore_operator.plan.observed import ClusterView, ObjectMeta, ObservedCore, ObservedObject
from enginecore_operator.plan.rendering import Rendering
from enginecore_operator.plan.revision import compute_revision, take_over_settings
from enginecore_operator.plan.rollout import EngineState, choose_updates
from enginecore_operator.plan.services import build_coordinator_service, build_engines_service


class _Engines(msgspec.Struct, frozen=True, kw_only=True):
    """The EngineCores of a cluster, sorted once; `leaving` ones keep their names until they are
    gone."""

    serving: Mapping[int, ObservedCore]
    surplus: Mapping[int, ObservedCore]
    missing: tuple[int, ...]
    leaving: int
    taken: tuple[str, ...]
    revision: str
    document: dict[str, Any]


def plan_cluster(view: ClusterView, rendering: Rendering, now: datetime) -> Plan:
    """Decide the next pass over one EngineCluster."""
    cluster = view.cluster
    if cluster.metadata.deletion_timestamp is not None:
        return Plan(status=cluster.status)
    try:
        spec = read_spec(cluster.spec, EngineClusterSpec)
    except InvalidSpecError as error:
        return refuse_cluster(view, cluster.status, Reason.INVALID_SPEC, str(error), now)
    ring = find_keyring(view)
    engines = _sort(view, spec, ring)
    children = _plan_children(view, spec, rendering, ring)
    # Without its keys an engine cannot start; those that run go on.
    held = ring is not None and ring.engine is None
    updates = _plan_updates(view, spec, engines, held=held)
    creates = tuple(
        Create(build_core(cluster.metadata, engines.document, rank, engines.revision))
        for rank in (() if held else engines.missing)
    )
    # The highest rank leaves first.
    deletes = tuple(
        Delete(ObjectRef(labels.CORE_KIND, core.metadata.namespace, core.metadata.name, _uid(core)))
        for _, core in sorted(engines.surplus.items(), reverse=True)
    )
    reported_with = coordinator_key(view, ring)
    coordinated = can_report(engines.serving, reported_with)
    service = view.services.get(names.coordinator_name(cluster.metadata.name))
    taken = (*children.taken, *engines.taken, *_taken_exposures(engines))
    status = cluster_status.build_status(
        view,
        cluster_status.Sight(
            spec=spec,
            revision=engines.revision,
            serving=engines.serving,
            surplus=engines.surplus,
            taken=taken,
            addresses=collect_addresses(
                spec.replicas,
                engines.serving,
                service if coordinated else None,
                reported_with,
            ),
            exposed=collect_exposed(spec, engines.serving),
        ),
        now,
    )
    addresses = build_addresses_map(
        cluster.metadata,
        spec,
        status.client_addresses,
        coordinated=coordinated,
    )
    listed = _ensure(cluster.metadata.uid, addresses, view.config_maps)
    stages = (
        children.actions,
        deletes,
        (*creates, *updates.actions),
        tuple(action for action in (listed,) if action is not None),
    )
    return Plan(
        status=status,
        stages=tuple(stage for stage in stages if stage),
        requeue_after=view.keys.rest if view.keys is not None else None,
        events=(
            *(view.keys.news if view.keys is not None else ()),
            *_scale_events(engines, held=held),
            *updates.events,
            *_taken_events(view, taken),
            *_trouble_events(view, status),
        ),
    )


def refuse_cluster(
    view: ClusterView,
    status: EngineClusterStatus,
    reason: Reason,
    message: str,
    now: datetime,
) -> Plan:
    """Say in `status` what is in the way: a bad spec, for which everything stays as it is, or an
    action the API refused, which keeps no other from being done.
    """
    status = cluster_status.build_refusal(view, status, reason, message, now)
    told = any(c.reason == reason and c.message == message for c in view.cluster.status.conditions)
    events = () if told else (Event(reason, message, "Warning"),)
    return Plan(status=status, events=events)


class _Children(msgspec.Struct, frozen=True):
    actions: tuple[Action, ...] = ()
    taken: tuple[str, ...] = ()


class _Updates(msgspec.Struct, frozen=True):
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()


def _uid(core: ObservedCore) -> str:
    return core.metadata.uid


def _sort(view: ClusterView, spec: EngineClusterSpec, ring: Keyring | None) -> _Engines:
    meta = view.cluster.metadata
    keys = (ring.engine or keys_before(view)) if ring is not None else None
    template = core_spec(meta, spec, 0, keys)
    by_name = {core.metadata.name: core for core in view.cores}
    serving, missing, leaving, taken = {}, [], 0, []
    for rank in range(spec.replicas):
        name = names.core_name(meta.name, rank)
        core = by_name.get(name)
        if core is None:
            missing.append(rank)
        elif not core.metadata.is_controlled_by(meta.uid):
            taken.append(f"{labels.CORE_KIND} {name}")
        elif core.metadata.deletion_timestamp is None:
            serving[rank] = core
        else:
            leaving += 1
    surplus = {
        rank: core
        for core in view.cores
        if core.metadata.is_controlled_by(meta.uid)
        and core.metadata.deletion_timestamp is None
        and (rank := int(core.spec.get("rank", 0))) >= spec.replicas
    }
    return _Engines(
        serving=serving,
        surplus=surplus,
        missing=tuple(missing),
        leaving=leaving,
        taken=tuple(taken),
        revision=compute_revision(template),
        document=spec_document(template),
    )


def _taken_exposures(engines: _Engines) -> tuple[str, ...]:
    """Name the Services on whose names another's keep clients outside from engines."""
    return tuple(
        f"Service {names.exposure_name(core.metadata.name)}"
        for _, core in sorted(engines.serving.items())
        if (exposed := find_condition(core.status.conditions, ConditionType.EXPOSED))
        and exposed.reason == Reason.NAME_TAKEN
    )


def _plan_children(
    view: ClusterView, spec: EngineClusterSpec, rendering: Rendering, ring: Keyring | None
) -> _Children:
    meta = view.cluster.metadata
    wanted = [
        (build_engines_service(meta, spec), view.services),
        (build_coordinator_service(meta), view.services),
    ]
    if ring is None or ring.coordinator_keys is not None:
        keys = ring.coordinator_keys if ring is not None else None
        deployment = build_coordinator(meta, spec.coordinator, rendering, keys)
        wanted.append((deployment, view.deployments))
    found = [_ensure(meta.uid, manifest, there) for manifest, there in wanted]
    taken = [
        f"{manifest['kind']} {manifest['metadata']['name']}"
        for manifest, there in wanted
        if _is_taken(meta.uid, manifest, there)
    ]
    name = names.addresses_name(meta.name)
    if name in view.config_maps and not view.config_maps[name].metadata.is_controlled_by(meta.uid):
        taken.append(f"ConfigMap {name}")
    policies = work_on_cluster(view, spec, rendering.operator_namespace)
    actions = (*policies.actions, *(action for action in found if action is not None))
    if ring is not None:
        return _Children((*ring.actions, *actions), (*taken, *policies.taken, *ring.taken))
    return _Children(actions, (*taken, *policies.taken))


def _is_taken(uid: str, manifest: dict[str, Any], there: Mapping[str, ObservedObject]) -> bool:
    observed = there.get(manifest["metadata"]["name"])
    return observed is not None and not observed.metadata.is_controlled_by(uid)


def _ensure(
    uid: str, manifest: dict[str, Any], there: Mapping[str, ObservedObject]
) -> Action | None:
    """Return what brings a child to its wanted state; nothing for another's object."""
    observed = there.get(manifest["metadata"]["name"])
    if observed is None:
        return Create(manifest)
    if not observed.metadata.is_controlled_by(uid):
        return None
    return Apply(manifest) if first_difference(manifest, observed.raw) else None


def _plan_updates(
    view: ClusterView, spec: EngineClusterSpec, engines: _Engines, *, held: bool
) -> _Updates:
    """Bring the present spec to the engines that a rollout may touch now; to none while it is
    held.
    """
    meta = view.cluster.metadata
    differing: dict[int, str] = {}
    states = []
    for rank, core in engines.serving.items():
        manifest = build_core(meta, engines.document, rank, engines.revision)
        difference = _difference(manifest, core)
        if difference is not None:
            differing[rank] = str(difference)
        serves = is_true(core.status.conditions, ConditionType.READY)
        states.append(
            EngineState(
                rank=rank,
                ready=core.caught_up and serves,
                serves=serves,
                updated=difference is None or _revision_of(core) == engines.revision,
            )
        )
    # A rank whose name is another's has no engine either.
    absent = len(engines.missing) + engines.leaving + len(engines.taken)
    chosen = [] if held else choose_updates(states, absent, spec.rollout)
    # A change that replaces no pod needs no turn.
    updated = [state.rank for state in states if state.updated and state.rank in differing]
    harmless = [] if held else updated
    turns = {*chosen, *harmless}
    waiting = [rank for rank in differing if rank not in turns]
    manifests = (
        *(build_core(meta, engines.document, rank, engines.revision) for rank in chosen),
        *(build_core(meta, engines.document, rank, engines.revision) for rank in harmless),
        *(_in_place(meta, spec, rank, engines.serving[rank]) for rank in waiting),
    )
    actions = tuple(Apply(manifest) for manifest in manifests if manifest is not None)
    events = tuple(
        Event(Reason.UPDATED, f"Updating {names.core_name(meta.name, rank)}: {differing[rank]}")
        for rank in chosen
    )
    return _Updates(actions, events)


def _in_place(
    meta: ObjectMeta, spec: EngineClusterSpec, rank: int, core: ObservedCore
) -> dict[str, Any] | None:
    """Return an engine whose turn has not come with what replaces no pod; None if it has that."""
    try:
        present = read_core_spec(core)
    except InvalidSpecError:
        return None
    document = spec_document(take_over_settings(present, spec))
    manifest = build_core(meta, document, rank, compute_revision(present))
    return None if _difference(manifest, core) is None else manifest


def _difference(manifest: dict[str, Any], core: ObservedCore) -> Difference | None:
    """Name what differs in either direction: a field that was dropped counts, too."""
    wanted, there = manifest["spec"], core.spec
    if wanted != there:
        found = first_difference(wanted, there, "spec") or first_difference(there, wanted, "spec")
        if found is not None:
            return found
    return first_difference(manifest["metadata"]["labels"], core.metadata.labels, "metadata.labels")


def _revision_of(core: ObservedCore) -> str:
    """Compute the revision from the spec itself: labels may be edited."""
    try:
        return compute_revision(read_core_spec(core))
    except InvalidSpecError:
        return ""


def _scale_events(engines: _Engines, *, held: bool) -> tuple[Event, ...]:
    events = []
    if engines.missing and not held:
        events.append(Event(Reason.CREATED, f"Created {_ranks(engines.missing)}"))
    if engines.surplus:
        gone = tuple(sorted(engines.surplus))
        events.append(Event(Reason.DELETED, f"Removed {_ranks(gone)}"))
    return tuple(events)


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"the engine of rank {ranks[0]}"
    if ranks[-1] - ranks[0] + 1 == len(ranks):
        return f"the engines of ranks {ranks[0]} to {ranks[-1]}"
    return f"the engines of ranks {', '.join(str(rank) for rank in ranks)}"


def _trouble_events(view: ClusterView, after: EngineClusterStatus) -> tuple[Event, ...]:
    """Tell when engines begin to fail, or to be kept from starting."""
    now = find_condition(after.conditions, ConditionType.DEGRADED)
    if now is None or now.reason not in (Reason.ENGINE_FAILED, Reason.ENGINE_STUCK):
        return ()
    before = find_condition(view.cluster.status.conditions, ConditionType.DEGRADED)
    told = before is not None and before.reason == now.reason
    return () if told else (Event(Reason(now.reason), now.message, "Warning"),)


def _taken_events(view: ClusterView, taken: tuple[str, ...]) -> tuple[Event, ...]:
    if not taken:
        return ()
    message = cluster_status.taken_message(taken)
    told = any(c.message == message for c in view.cluster.status.conditions)
    return () if told else (Event(Reason.NAME_TAKEN, message, "Warning"),)
