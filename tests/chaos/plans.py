"""What a caller asks for, and what it does with the answer: drawn from a seed."""

from random import Random
from typing import Final, NamedTuple

from chaos.journal import Sent

PLANS: Final = {"read": 14, "leave": 4, "deadline": 2}
"""How often each is drawn. The rest of what a caller does is in `Sent`."""

LENGTHS: Final = ((1, 1), (2, 20), (20, 100), (200, 500))
"""Of answers, in tokens: most are short, some take seconds."""

LENGTH_WEIGHTS: Final = (2, 8, 4, 2)
VOCABULARY: Final = 1000
DEADLINES: Final = (0.01, 3.0)


class Plan(NamedTuple):
    """A request; `after` is the number of outputs after which its caller leaves it, `deadline` how
    many seconds it waits."""

    sent: Sent
    after: int | None
    deadline: float | None


def plan(random: Random, name: str, *, patient: bool) -> Plan:
    """Return what comes next; a `patient` caller reads to the end, and lets the client send again
    what has no token yet."""
    low, high = random.choices(LENGTHS, LENGTH_WEIGHTS)[0]
    tokens = random.randint(low, high)
    kind = "read" if patient else random.choices(list(PLANS), list(PLANS.values()))[0]
    sent = Sent(
        id=name,
        prompt=random.sample(range(VOCABULARY), random.randint(1, 16)),
        max_tokens=tokens,
        plan=kind,
        retry=patient or random.random() < 0.5,
    )
    return Plan(
        sent,
        random.randrange(tokens) if kind == "leave" else None,
        random.uniform(*DEADLINES) if kind == "deadline" else None,
    )
