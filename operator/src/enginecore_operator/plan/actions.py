"""A Plan: what to do, in which order, what to write as status, what to tell."""

from typing import Any, Literal

import msgspec

from enginecore_operator.api.conditions import Reason
from enginecore_operator.api.status import EngineClusterStatus, EngineCoreStatus


class ObjectRef(msgspec.Struct, frozen=True):
    """Which object; a uid makes sure that it is the same one and not a namesake."""

    kind: str
    namespace: str
    name: str
    uid: str = ""


class Create(msgspec.Struct, frozen=True):
    """Create an object; it must not exist."""

    manifest: dict[str, Any]


class Apply(msgspec.Struct, frozen=True):
    """Bring an object of ours to this state (server-side apply)."""

    manifest: dict[str, Any]


class Delete(msgspec.Struct, frozen=True):
    """Delete an object; `grace_seconds` None: with its own grace period."""

    ref: ObjectRef
    grace_seconds: int | None = None


class Patch(msgspec.Struct, frozen=True):
    """Merge a patch into an object."""

    ref: ObjectRef
    patch: dict[str, Any]


Action = Create | Apply | Delete | Patch


class Event(msgspec.Struct, frozen=True):
    """Something to tell about the object reconciled."""

    reason: Reason
    message: str
    type: Literal["Normal", "Warning"] = "Normal"


class Ask(msgspec.Struct, frozen=True):
    """Read the status page of a pod and come back."""

    pod_uid: str
    pod_ready: bool
    url: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass does.

    Stages run one after another, the actions of a stage side by side; then the status is
    written if it differs from the observed one, then the events go out. A status that is not
    `urgent` may wait a moment for the next one: it shows a step on the way. What exposes an engine
    comes last: an engine serves, and is replaced, whatever becomes of its Service.
    """

    status: EngineClusterStatus | EngineCoreStatus
    stages: tuple[tuple[Action, ...], ...] = ()
    events: tuple[Event, ...] = ()
    exposure: tuple[Action, ...] = ()
    ask: Ask | None = None
    requeue_after: float | None = None
    urgent: bool = True
