"""Timers of an engine's life: how it is watched, ended, started again and replaced."""

from typing import Annotated, ClassVar

from msgspec import Meta

from enginecore_operator.api.schema import Rule, Spec

MAX_REPLICAS = 4096
Seconds = Annotated[float, Meta(gt=0, le=86400)]


class Liveness(Spec, frozen=True):
    """Timers that tell a dead peer from a slow one."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.lostAfterSeconds > self.pingSeconds",
            "must be larger than pingSeconds",
            ".lostAfterSeconds",
            lambda liveness: liveness.lost_after_seconds > liveness.ping_seconds,
        ),
    )
    ping_seconds: Annotated[Seconds, Meta(description="Period of the clients' pings.")] = 1.0
    lost_after_seconds: Annotated[Seconds, Meta(description="Silence that means lost.")] = 4.0
    grace_seconds: Annotated[
        Seconds, Meta(description="How long a client may reconnect before its requests end.")
    ] = 5.0
    step_deadline_seconds: Annotated[
        Seconds, Meta(description="An engine with work and no output for this long is dead.")
    ] = 60.0
    start_progress_deadline_seconds: Annotated[
        Seconds, Meta(description="A starting engine without progress for this long is dead.")
    ] = 600.0


class Drain(Spec, frozen=True):
    """How an engine ends."""

    deadline_seconds: Annotated[
        int, Meta(ge=1, le=86400, description="How long running streams may go on.")
    ] = 60


class Restart(Spec, frozen=True):
    """Back-off and limit of an engine that fails again and again."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.maxSeconds >= self.initialSeconds",
            "must not be smaller than initialSeconds",
            ".maxSeconds",
            lambda restart: restart.max_seconds >= restart.initial_seconds,
        ),
    )
    initial_seconds: Annotated[
        Seconds, Meta(description="Wait after the first failure; doubles with each.")
    ] = 1.0
    max_seconds: Annotated[Seconds, Meta(description="Longest wait.")] = 300.0
    limit: Annotated[
        int,
        Meta(
            ge=1,
            le=1000,
            description="Failures in a row after which the engine is given up until its spec "
            "changes. An engine that was Ready for a minute starts to count anew.",
        ),
    ] = 10


class Rollout(Spec, frozen=True):
    """How a change of the spec reaches running engines: highest rank first."""

    max_unavailable: Annotated[
        int, Meta(ge=1, le=MAX_REPLICAS, description="Engines not Ready at the same time.")
    ] = 1
    paused: Annotated[bool, Meta(description="Leave running engines as they are.")] = False
