"""What goes wrong, and when: a schedule that a seed fixes."""

from random import Random
from typing import Final, NamedTuple

KILLS: Final = ("engine", "server", "pod", "coordinator", "client")
"""What is ended by SIGKILL; a pod is its server and its engine at once."""

KINDS: Final = (*KILLS, "drain", "stuck engine", "stuck server", "cut", "hole")
"""`drain`: a pod gets SIGTERM. `stuck`: a process is stopped. `cut`: connections to a pod break.
`hole`: nothing gets through to a pod, or from it, for a while."""

GAP_SECONDS: Final = 1.8
"""How far apart faults are, on average."""

LONGEST_SECONDS: Final = 7.0
"""A hole or a stop lasts at most this long: longer than a client is patient."""


class Fault(NamedTuple):
    """`at` seconds after the beginning, to the pod of a `rank`; `seconds` is how long it lasts."""

    at: float
    kind: str
    rank: int
    seconds: float


def schedule(random: Random, seconds: float, ranks: int) -> list[Fault]:
    """Return the faults of a run, in order of time: every kind once, then any."""
    kinds = list(KINDS)
    random.shuffle(kinds)
    faults = []
    for at in sorted(random.uniform(0, seconds) for _ in range(round(seconds / GAP_SECONDS))):
        kind = kinds.pop() if kinds else random.choice(KINDS)
        lasts = random.uniform(0.2, LONGEST_SECONDS)
        faults.append(Fault(at, kind, random.randrange(ranks), lasts))
    return faults
