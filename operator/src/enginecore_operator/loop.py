"""Reconcile: woken by keys, read the cache, plan, carry the plan out, write one status."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from enginecore_curve.pair import KeyPair
from enginecore_operator.api import labels
from enginecore_operator.api.conditions import ConditionType, Reason, is_true
from enginecore_operator.api.status import EngineClusterStatus
from enginecore_operator.facts_keeper import FactsKeeper
from enginecore_operator.key_keeper import KeyKeeper
from enginecore_operator.kube.cache import Cache, Change
from enginecore_operator.kube.client import KubeClient
from enginecore_operator.kube.errors import (
    KubeError,
    NotLeaderError,
    RefusedError,
    TerminatingError,
    UnreachableError,
)
from enginecore_operator.kube.events import EventWriter
from enginecore_operator.kube.execute import Executor
from enginecore_operator.kube.resources import BY_KIND, CLUSTERS, CORES, NODES, PODS
from enginecore_operator.kube.secrets import SecretStore
from enginecore_operator.metrics import OperatorMetrics
from enginecore_operator.plan.actions import Action, Plan
from enginecore_operator.plan.cluster_plan import plan_cluster, refuse_cluster
from enginecore_operator.plan.core_plan import plan_core, refuse_core, refuse_exposure
from enginecore_operator.plan.keys import KeyHolder, cluster_holder, core_holder
from enginecore_operator.plan.observed import (
    ClusterView,
    CoreView,
    KeysView,
    ObservedCluster,
    ObservedCore,
    ObservedNode,
    ObservedPod,
)
from enginecore_operator.plan.obstacles import is_slow
from enginecore_operator.plan.orphans import plan_orphans
from enginecore_operator.plan.rendering import Rendering
from enginecore_operator.pod_warnings import PodWarnings
from enginecore_operator.status_reader import StatusReader
from enginecore_operator.status_writer import StatusWriter
from enginecore_operator.views import (
    foreign_children,
    foreign_objects,
    read_cluster_view,
    read_core_view,
)
from enginecore_operator.wakes import keys_concerned
from enginecore_operator.workqueue import Key, WorkQueue

CLUSTER_DELAY: Final = 0.1
DELAY_PER_ENGINE: Final = 0.001
LONGEST_CLUSTER_DELAY: Final = 0.5
"""Seconds in which the wakes of a cluster by its engines become one pass: more for many, as
each pass writes all their addresses."""
REFUSED_DELAY: Final = 15.0
ACTIONS_AT_ONCE: Final = 32

logger = logging.getLogger(__name__)


def _sooner(requeue: float | None, delay: float) -> float:
    return delay if requeue is None else min(requeue, delay)


def _words(error: KubeError) -> str:
    """Return what the API server said; of one that gave no answer, what was asked."""
    return error.message if isinstance(error, RefusedError) else str(error)


def _serves(core: ObservedCore) -> bool:
    return is_true(core.status.conditions, ConditionType.READY)


def _raise_unless_refused(error: KubeError | None) -> None:
    """Raise what the same request may overcome soon: the pass was made, the next one is near."""
    if error is not None and not isinstance(error, RefusedError):
        raise error


class Reconciler:
    """Works on keys while this process leads.

    Args:
        new_pair: makes keys; key_lag: seconds within which files in pods follow.
        clock: monotonic seconds; now: the time of day in UTC.
    """

    def __init__(
        self,
        client: KubeClient,
        reader: StatusReader,
        events: EventWriter,
        metrics: OperatorMetrics,
        rendering: Rendering,
        *,
        new_pair: Callable[[], KeyPair],
        key_lag: float,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self.cache = Cache(self._changed)
        self.queue = WorkQueue()
        self._executor = Executor(client, self.cache)
        self._facts = FactsKeeper(reader, self._wake, clock)
        self._warnings = PodWarnings(client, clock)
        self._keys = KeyKeeper(
            SecretStore(client, clock), self.cache, self._executor, new_pair, lag=key_lag, now=now
        )
        self._statuses = StatusWriter(client, self.cache, events, self.queue, clock)
        self._metrics = metrics
        self._rendering = rendering
        self._clock = clock
        self._now = now
        self._leads = False
        self._slots = asyncio.Semaphore(ACTIONS_AT_ONCE)

    def start(self) -> None:
        """Begin to lead, after the cache was filled: look at everything once."""
        self._leads = True
        self.wake_all()

    def stop(self) -> None:
        """Cease to lead: drop all that waits; what is under way ends at its next write."""
        self._leads = False
        self.queue.clear()
        self._statuses.clear()

    def wake_all(self) -> None:
        """Look at every object again."""
        for kind in (labels.CORE_KIND, labels.CLUSTER_KIND):
            for view in self.cache.all(kind):
                self._wake(Key(kind, view.metadata.namespace, view.metadata.name))

    async def run(self, workers: int) -> None:
        """Work for ever."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._work())
        finally:
            self._facts.close()

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            started = self._clock()
            outcome = "error"
            try:
                outcome = await self._pass(key)
            finally:
                self.queue.done(key)
                self._metrics.reconciles.labels(key.kind, outcome).inc()
                self._metrics.reconcile_seconds.labels(key.kind).observe(self._clock() - started)
                self._metrics.queue.set(len(self.queue))

    async def _pass(self, key: Key) -> str:
        """Make one pass over a key and see to the next one; return the outcome."""
        if not self._leads:
            return "standby"
        try:
            requeue = await self._reconcile(key)
        except NotLeaderError:
            return "standby"
        except TerminatingError as error:
            logger.info("%s: %s", key, error.message)
            return "terminating"
        except KubeError as error:
            delay = self.queue.add_failed(key)
            logger.warning("%s: %s; again in %.1f s", key, error, delay)
            return "error"
        except Exception as error:
            delay = self.queue.add_failed(key)
            logger.exception("%s: the pass failed; again in %.1f s", key, delay)
            await self._admit_fault(key, error)
            return "bug"
        self.queue.forgive(key)
        if requeue is not None:
            self.queue.add_after(key, requeue)
        return "ok"

    async def _admit_fault(self, key: Key, error: Exception) -> None:
        """Say in the status that the operator failed at an object; that of an engine that serves
        does not say so, as a cluster would take the engine for broken.
        """
        text = f"a fault of the operator ({type(error).__name__}), of which its log tells"
        there = self.cache.get(key.kind, key.namespace, key.name)
        view: ClusterView | CoreView
        if isinstance(there, ObservedCluster):
            view = ClusterView(cluster=there)
            plan = refuse_cluster(view, there.status, Reason.OPERATOR_FAULT, text, self._now())
        elif isinstance(there, ObservedCore) and not _serves(there):
            view = CoreView(core=there)
            plan = refuse_core(view, Reason.OPERATOR_FAULT, text, self._now())
        else:
            return
        try:
            await self._settle(key, view, plan)
        except KubeError as silence:
            logger.warning("%s: %s", key, silence)

    async def _reconcile(self, key: Key) -> float | None:
        if key.kind == labels.CLUSTER_KIND:
            return await self._reconcile_cluster(key)
        return await self._reconcile_core(key)

    async def _reconcile_cluster(self, key: Key) -> float | None:
        view = read_cluster_view(self.cache, key.namespace, key.name)
        if view is None:
            await self._reap(key)
            return None
        foreign = foreign_children(view)
        if foreign:
            await self._each(
                self._executor.refresh(BY_KIND[kind], key.namespace, name) for kind, name in foreign
            )
            view = read_cluster_view(self.cache, key.namespace, key.name) or view
        keys, keyless = await self._make_keys(cluster_holder(view))
        view = msgspec.structs.replace(view, keys=keys)
        plan, refused = plan_cluster(view, self._rendering, self._now()), keyless
        for stage in plan.stages:
            try:
                await self._act(stage)
            except RefusedError as error:
                # Addresses are told, and engines made, without a coordinator or a Service, too.
                refused = refused or error
        if refused is not None:
            assert isinstance(plan.status, EngineClusterStatus)
            plan = refuse_cluster(
                view, plan.status, Reason.API_REFUSED, _words(refused), self._now()
            )
        await self._settle(key, view, plan)
        _raise_unless_refused(keyless)
        return REFUSED_DELAY if foreign or refused else plan.requeue_after

    async def _reconcile_core(self, key: Key) -> float | None:
        view = read_core_view(self.cache, key.namespace, key.name, self._facts.latest(key))
        if view is None:
            await self._reap(key)
            return None
        foreign = foreign_objects(view)
        if foreign:
            await self._each(
                self._executor.refresh(BY_KIND[kind], key.namespace, name) for kind, name in foreign
            )
            view = read_core_view(self.cache, key.namespace, key.name, self._facts.latest(key))
            if view is None:
                return None
        slow = [pod for pod in view.pods if is_slow(pod, self._now())]
        view = msgspec.structs.replace(
            view,
            nodes=await self._nodes_of(view.pods),
            warnings=await self._warnings.latest(slow),
        )
        keys, keyless = await self._make_keys(core_holder(view))
        if keyless is not None:
            logger.warning("%s: no keys: %s", key, keyless)
        words = _words(keyless) if keyless is not None else ""
        view = msgspec.structs.replace(view, keys=keys, keys_refused=words)
        try:
            requeue = await self._carry_out(
                key, view, plan_core(view, self._rendering, self._now())
            )
        except RefusedError as error:
            view = read_core_view(self.cache, key.namespace, key.name) or view
            plan = refuse_core(view, Reason.API_REFUSED, error.message, self._now())
            await self._carry_out(key, view, plan)
            return REFUSED_DELAY
        _raise_unless_refused(keyless)
        return _sooner(requeue, REFUSED_DELAY) if foreign or keyless else requeue

    async def _make_keys(
        self, holder: KeyHolder | None
    ) -> tuple[KeysView | None, KubeError | None]:
        """Return the keys, or why they are not to be had: all that needs none goes on."""
        if holder is None:
            return None, None
        try:
            return await self._keys.make(holder), None
        except (NotLeaderError, TerminatingError):
            raise
        except KubeError as error:
            return None, error

    async def _reap(self, key: Key) -> None:
        """Delete the engines of a cluster, or the pods of an engine, that is gone for sure."""
        self._facts.forget(key)
        self._statuses.forget(key)
        owner = BY_KIND[key.kind]
        child = PODS if owner is CORES else CORES
        if not self.cache.count(child.kind, key.namespace, key.name):
            return
        await self._executor.refresh(owner, key.namespace, key.name)
        if self.cache.get(key.kind, key.namespace, key.name) is None:
            children = self.cache.children(child.kind, key.namespace, key.name)
            orphans = [view for view in children if isinstance(view, ObservedCore | ObservedPod)]
            await self._act(plan_orphans(key.kind, child.kind, orphans))

    async def _carry_out(self, key: Key, view: CoreView, plan: Plan) -> float | None:
        """Carry a plan out: actions, then the status and events, then what exposes an engine."""
        for stage in plan.stages:
            await self._act(stage)
        await self._settle(key, view, plan)
        if plan.exposure:
            return await self._expose(key, view, plan)
        return plan.requeue_after

    async def _settle(self, key: Key, view: ClusterView | CoreView, plan: Plan) -> None:
        """Write the status if it changed, then tell the events."""
        await self._statuses.settle(key, view, plan)
        if plan.ask is not None:
            self._facts.ask(key, plan.ask)

    async def _expose(self, key: Key, view: CoreView, plan: Plan) -> float | None:
        """Do what exposes an engine; where the API server does not take it, only say so."""
        try:
            await self._act(plan.exposure)
        except (RefusedError, UnreachableError) as error:
            refused = refuse_exposure(view, plan, _words(error), self._now())
            await self._settle(key, view, refused)
            return _sooner(plan.requeue_after, REFUSED_DELAY)
        return plan.requeue_after

    async def _act(self, stage: Sequence[Action]) -> None:
        if len(stage) == 1:
            await self._executor.execute(stage[0])
        else:
            await self._each(self._executor.execute(action) for action in stage)

    async def _each(self, work: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Do things side by side, all of them; then raise the first error there was."""

        async def bounded(one: Awaitable[None]) -> None:
            async with self._slots:
                await one

        results = await asyncio.gather(*map(bounded, work), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _nodes_of(self, pods: Sequence[ObservedPod]) -> dict[str, ObservedNode]:
        """Return the nodes of pods. A node is gone only when the API server says so: a pod may
        be told of before its new node is.
        """
        found = {}
        for name in {pod.spec.node_name for pod in pods if pod.spec.node_name}:
            if self.cache.get(NODES.kind, "", name) is None:
                await self._executor.refresh(NODES, "", name)
            node = self.cache.get(NODES.kind, "", name)
            if isinstance(node, ObservedNode):
                found[name] = node
        return found

    def _changed(self, change: Change) -> None:
        for key in keys_concerned(change, self.cache):
            self._wake(key)

    def _wake(self, key: Key) -> None:
        if not self._leads:
            return
        if key.kind == CLUSTERS.kind:
            engines = self.cache.count(CORES.kind, key.namespace, key.name)
            delay = min(CLUSTER_DELAY + engines * DELAY_PER_ENGINE, LONGEST_CLUSTER_DELAY)
            self.queue.add_after(key, delay)
        else:
            self.queue.add(key)
        self._metrics.queue.set(len(self.queue))
