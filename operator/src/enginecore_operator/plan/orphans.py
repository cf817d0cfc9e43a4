"""Children of an object that is gone."""

from collections.abc import Sequence

from enginecore_operator.plan.actions import Action, Delete, ObjectRef
from enginecore_operator.plan.observed import ObservedCore, ObservedPod


def plan_orphans(
    owner_kind: str, kind: str, children: Sequence[ObservedCore | ObservedPod]
) -> tuple[Action, ...]:
    """Decide what to delete of the children that carry the name of an object that is gone.

    The garbage collector deletes them, too, but up to a minute later where the CRDs are new, and
    an engine that leaves is to drain at once. Children left on purpose (--cascade=orphan) have no
    owner any more.
    """
    return tuple(
        Delete(ObjectRef(kind, child.metadata.namespace, child.metadata.name, child.metadata.uid))
        for child in children
        if child.metadata.deletion_timestamp is None and child.metadata.controller_name(owner_kind)
    )
