"""Restart policy: when a failed engine is started again, and when it is given up."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from enginecore_operator.api.conditions import (
    ConditionType,
    find_condition,
    parse_timestamp,
    precise_timestamp,
)
from enginecore_operator.api.lifecycle import Restart
from enginecore_operator.api.status import EngineCoreStatus, Failure
from enginecore_operator.plan.observed import ObservedPod
from enginecore_wire.contract import ServerStatus
from enginecore_wire.packed_log import unpack
from enginecore_wire.wording import counted, shortened

STABLE_SECONDS: Final = 60.0
"""An engine that was Ready for this long failed for a new cause: its failures count anew."""

MESSAGE_LENGTH: Final = 24 << 10
"""Characters of a failure's message: fifty lines of log, each as long as a server leaves it."""

TALE_LENGTH: Final = 4096
"""The same where it is told again: in conditions, which a cluster has of all its engines."""
CAUSE_LENGTH: Final = 1024
"""Of these, at their beginning: the cause stands before the log."""

_ERROR: Final = "Error"


def describe_end(pod: ObservedPod) -> tuple[str, str]:
    """Return reason and message of a pod's end; the message ends with the engine's last log."""
    end, subject = pod.engine_end, "engine"
    if pod.status.reason:
        return pod.status.reason, pod.status.message
    if end is None and (init := pod.failed_init) is not None:
        end, subject = init.state.terminated, f"init container {init.name}"
    if end is None:
        return pod.status.phase or "Failed", pod.status.message
    reason, log = end.reason or _ERROR, end.message.strip()
    text = f"{subject} exited {end.exit_code}"
    told = _read_last_words(log)
    if told is not None:
        # Kubernetes' own word, such as OOMKilled, says more than what the server saw of it.
        reason = told.reason if told.reason and reason == _ERROR else reason
        lines = max(unpack(told.log_packed), told.log_tail, key=len)
        text, log = told.message or text, "\n".join(lines)
    return reason, text + (f"; its last output: {log}" if log else "")


def _read_last_words(text: str) -> ServerStatus | None:
    """Read the status a server leaves at its end; None for anything else, such as a log."""
    try:
        return msgspec.json.decode(text, type=ServerStatus)
    except msgspec.MsgspecError:
        return None


def record_failure(
    pod: ObservedPod, status: EngineCoreStatus, revision: str, now: datetime
) -> Failure:
    """Count the failure of a pod: one more in a row, or the first of a new row."""
    before = status.failure
    reason, message = describe_end(pod)
    in_a_row = before is not None and before.revision == revision and not _was_stable(status, now)
    return Failure(
        epoch=pod.epoch,
        count=before.count + 1 if before is not None and in_a_row else 1,
        time=precise_timestamp(now),
        reason=reason,
        message=shortened(message, MESSAGE_LENGTH, CAUSE_LENGTH),
        revision=revision,
    )


def describe_failures(failure: Failure) -> str:
    """Tell a failure's tale in one sentence."""
    row = counted(failure.count, "failure")
    message = shortened(failure.message, TALE_LENGTH, CAUSE_LENGTH)
    return f"{row} in a row, the last: {failure.reason}: {message}"


def given_up(failure: Failure, policy: Restart) -> bool:
    """Tell whether the limit of failures in a row is reached."""
    return failure.count >= policy.limit


def restart_time(failure: Failure, policy: Restart) -> datetime:
    """Return when the next pod may start: initialSeconds, doubled with each failure, capped."""
    exponent = min(failure.count - 1, 32)
    seconds = min(policy.initial_seconds * 2.0**exponent, policy.max_seconds)
    return parse_timestamp(failure.time) + timedelta(seconds=seconds)


def _was_stable(status: EngineCoreStatus, now: datetime) -> bool:
    ready = find_condition(status.conditions, ConditionType.READY)
    if ready is None or ready.status != "True" or not ready.last_transition_time:
        return False
    since = parse_timestamp(ready.last_transition_time)
    return (now - since).total_seconds() >= STABLE_SECONDS
