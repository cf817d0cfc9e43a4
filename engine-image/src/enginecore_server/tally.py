"""Counts and distributions the relay keeps as plain numbers, cheap enough for every token."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final

from enginecore_server.monitors import Refusal
from enginecore_wire.control import RejectCode
from enginecore_wire.outputs import FinishReason

FIRST_TOKEN_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
BETWEEN_TOKENS_BUCKETS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
WHOLE_REQUEST_BUCKETS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip

RELAY_BUCKETS: Final = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.5, 1.0,
)  # fmt: skip

FINISH_NAMES: Final = {reason.value: reason.name.lower() for reason in FinishReason}


class Distribution:
    """How often a value fell into each bucket (upper bounds in seconds), and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def observe_all(self, seconds: float, count: int) -> None:
        """Count `count` equal values."""
        self.counts[bisect_left(self.bounds, seconds)] += count
        self.total += seconds * count

    def cumulative(self) -> list[tuple[str, int]]:
        """Return (upper bound, values up to it) for every bucket, "+Inf" last."""
        labels = [*(str(bound) for bound in self.bounds), "+Inf"]
        running = 0
        pairs = []
        for label, count in zip(labels, self.counts, strict=True):
            running += count
            pairs.append((label, running))
        return pairs


class Tally:
    """Everything counted since the server started."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished: Counter[str] = Counter(dict.fromkeys(FINISH_NAMES.values(), 0))
        self.rejected: Counter[str] = Counter({str(code): 0 for code in RejectCode})
        self.first_token = Distribution(FIRST_TOKEN_BUCKETS)
        self.between_tokens = Distribution(BETWEEN_TOKENS_BUCKETS)
        self.whole_request = Distribution(WHOLE_REQUEST_BUCKETS)
        self.queue = Distribution(WHOLE_REQUEST_BUCKETS)
        self.prefill = Distribution(WHOLE_REQUEST_BUCKETS)
        self.decode = Distribution(WHOLE_REQUEST_BUCKETS)
        self.inference = Distribution(WHOLE_REQUEST_BUCKETS)
        self.relay = Distribution(RELAY_BUCKETS)
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.outputs_relayed = 0
        self.outputs_dropped = 0
        self.outputs_replayed = 0
        self.foreign_aborts = 0
        self.vanished_clients = 0
        self.slow_clients = 0
        self.unreadable_outputs = 0
        self.impostors = 0
        self.refused_connections: Counter[str] = Counter({str(why): 0 for why in Refusal})
