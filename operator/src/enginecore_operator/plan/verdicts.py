"""What a pass finds about a condition, before it is put beside the one written last."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from enginecore_operator.api.conditions import Condition, ConditionType, Reason, set_condition


class Verdict(msgspec.Struct, frozen=True):
    """Status, reason and message of a condition."""

    status: bool
    reason: Reason
    message: str


def build_conditions(
    previous: Sequence[Condition],
    verdicts: Mapping[ConditionType, Verdict],
    *,
    now: datetime,
    generation: int,
) -> list[Condition]:
    """Build one condition for each verdict, in their order.

    Args:
        previous: the conditions written last.
        verdicts: what each type is found to be.
        now: time of this pass.
        generation: generation of the spec the verdicts speak of.
    """
    return [
        set_condition(
            previous,
            kind,
            verdict.status,
            verdict.reason,
            verdict.message,
            now=now,
            generation=generation,
        )
        for kind, verdict in verdicts.items()
    ]


def replace_condition(
    previous: Sequence[Condition],
    kind: ConditionType,
    verdict: Verdict,
    *,
    now: datetime,
    generation: int,
    planned: Sequence[Condition] | None = None,
) -> list[Condition]:
    """Return the conditions written last, or those `planned` in their stead, with one of them
    anew; the others keep their places.
    """
    (fresh,) = build_conditions(previous, {kind: verdict}, now=now, generation=generation)
    base = previous if planned is None else planned
    if not any(condition.type == kind for condition in base):
        return [*base, fresh]
    return [fresh if condition.type == kind else condition for condition in base]
