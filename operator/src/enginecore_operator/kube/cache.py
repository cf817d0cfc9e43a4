"""What the watches told, by kind and name, with the answers to our own writes in between."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from enginecore_operator.api import labels
from enginecore_operator.plan.observed import (
    ObjectMeta,
    ObservedCluster,
    ObservedCore,
    ObservedNode,
    ObservedObject,
    ObservedPod,
)

View = ObservedCluster | ObservedCore | ObservedPod | ObservedNode | ObservedObject
Place = tuple[str, str]
"""Namespace and name."""

TOMBSTONES: Final = 10_000

_TYPED: Final[dict[str, type[View]]] = {
    labels.CLUSTER_KIND: ObservedCluster,
    labels.CORE_KIND: ObservedCore,
    "Pod": ObservedPod,
    "Node": ObservedNode,
}
_PARENT_LABEL: Final = {"Pod": labels.CORE, labels.CORE_KIND: labels.CLUSTER}


class Change(NamedTuple):
    """One change of the cache: `before` is None for a new object, `after` for one that went."""

    kind: str
    before: View | None
    after: View | None

    @property
    def metadata(self) -> ObjectMeta:
        """Metadata of the object, in its latest state."""
        view = self.after or self.before
        assert view is not None
        return view.metadata


def read_view(kind: str, raw: dict[str, Any]) -> View:
    """Reduce an object to what is decided by. Raises msgspec.ValidationError."""
    if kind in _TYPED:
        return msgspec.convert(raw, _TYPED[kind])
    return ObservedObject(msgspec.convert(raw["metadata"], ObjectMeta), raw)


class Cache:
    """Latest known state of every object of ours; calls `on_change` for each change.

    Versions only go forward: an event that is older than the answer to our own write, or of
    an object known to be deleted, changes nothing until the API server shows it when asked.
    """

    def __init__(self, on_change: Callable[[Change], None]) -> None:
        self._on_change = on_change
        self._objects: dict[str, dict[Place, View]] = {}
        self._children: dict[str, dict[Place, set[Place]]] = {}
        self._deleted: set[str] = set()
        self._deleted_order: deque[str] = deque()

    def get(self, kind: str, namespace: str, name: str) -> View | None:
        """Return one object, or None."""
        return self._objects.get(kind, {}).get((namespace, name))

    def all(self, kind: str) -> Iterable[View]:
        """Return all objects of a kind."""
        return tuple(self._objects.get(kind, {}).values())

    def children(self, kind: str, namespace: str, parent: str) -> Sequence[View]:
        """Return the objects of a kind whose label names this parent, by name."""
        places = self._children.get(kind, {}).get((namespace, parent), ())
        objects = self._objects.get(kind, {})
        return [objects[place] for place in sorted(places)]

    def count(self, kind: str, namespace: str, parent: str) -> int:
        """Return how many children there are."""
        return len(self._children.get(kind, {}).get((namespace, parent), ()))

    def put(self, kind: str, raw: dict[str, Any], *, found: bool = False) -> bool:
        """Take an object in; tell whether it was news. Raises msgspec.ValidationError.

        Args:
            kind: its kind.
            raw: the object.
            found: it was read by its name. A watch also says of an object that lost our labels
                that it was deleted.
        """
        view = read_view(kind, raw)
        meta = view.metadata
        if meta.uid in self._deleted:
            if not found or meta.deletion_timestamp is not None:
                return False
            self._exhume(meta.uid)
        objects = self._objects.setdefault(kind, {})
        place = (meta.namespace, meta.name)
        before = objects.get(place)
        if before is not None and not _is_newer(meta, before.metadata):
            return False
        objects[place] = view
        self._index(kind, place, before, view)
        self._on_change(Change(kind, before, view))
        return True

    def remove(self, kind: str, namespace: str, name: str, uid: str = "") -> bool:
        """Forget an object, unless it is a namesake of another uid; tell whether it was there."""
        place = (namespace, name)
        before = self._objects.get(kind, {}).get(place)
        if uid:
            self._bury(uid)
        if before is None or (uid and before.metadata.uid != uid):
            return False
        del self._objects[kind][place]
        self._bury(before.metadata.uid)
        self._index(kind, place, before, None)
        self._on_change(Change(kind, before, None))
        return True

    def replace(
        self, kind: str, items: Iterable[dict[str, Any]], version: str, *, namespace: str = ""
    ) -> int:
        """Take in the whole list of a namespace, or of all, as of that collection version.

        Returns how many objects were news: with a sound watch none.
        """
        listed = set()
        news = 0
        for raw in items:
            meta = raw["metadata"]
            listed.add((meta.get("namespace", ""), meta["name"]))
            news += self.put(kind, raw)
        for view in self.all(kind):
            meta_there = view.metadata
            place = (meta_there.namespace, meta_there.name)
            if namespace and meta_there.namespace != namespace:
                continue
            if place not in listed and not _is_after(meta_there.resource_version, version):
                news += self.remove(kind, *place, meta_there.uid)
        return news

    def _index(self, kind: str, place: Place, before: View | None, after: View | None) -> None:
        label = _PARENT_LABEL.get(kind)
        if label is None:
            return
        index = self._children.setdefault(kind, {})
        if before is not None:
            parent = (place[0], before.metadata.labels.get(label, ""))
            members = index.get(parent)
            if members is not None:
                members.discard(place)
                if not members:
                    del index[parent]
        if after is not None:
            parent = (place[0], after.metadata.labels.get(label, ""))
            index.setdefault(parent, set()).add(place)

    def _exhume(self, uid: str) -> None:
        self._deleted.discard(uid)
        self._deleted_order.remove(uid)

    def _bury(self, uid: str) -> None:
        if uid in self._deleted:
            return
        self._deleted.add(uid)
        self._deleted_order.append(uid)
        if len(self._deleted_order) > TOMBSTONES:
            self._deleted.discard(self._deleted_order.popleft())


def _is_newer(meta: ObjectMeta, before: ObjectMeta) -> bool:
    """Tell whether an object replaces the one before: a namesake, or a later version."""
    return _is_after(meta.resource_version, before.resource_version)


def _is_after(version: str, other: str) -> bool:
    """Compare resource versions: the API defines them to be comparable as numbers."""
    if version.isdecimal() and other.isdecimal():
        return int(version) > int(other)
    return version != other
