"""The coordinator's own metrics; engine loads are read from the book at scrape time."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from enginecore_coordinator.loads import LoadBook

PREFIX = "enginecore_coordinator"


class CoordinatorMetrics:
    """Counters of what passed the sockets, in the registry passed in."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.reports = Counter(f"{PREFIX}_reports", "Load reports taken in.", registry=registry)
        self.refused = Counter(
            f"{PREFIX}_reports_refused",
            "Load reports ignored, by reason.",
            ["reason"],
            registry=registry,
        )
        self.publications = Counter(
            f"{PREFIX}_publications", "Load reports published to clients.", registry=registry
        )
        self.subscriptions = Counter(
            f"{PREFIX}_subscriptions", "Subscriptions of clients.", registry=registry
        )
        self.first_requests = Counter(
            f"{PREFIX}_first_requests",
            "First-request notices of clients, which independent ranks need not.",
            registry=registry,
        )
        self.unknown_messages = Counter(
            f"{PREFIX}_unknown_messages",
            "Messages of clients that are no first-request notice.",
            registry=registry,
        )
        self.refused_connections = Counter(
            f"{PREFIX}_refused_connections",
            "Connections with a key that may not be there, by what they were for.",
            ["purpose"],
            registry=registry,
        )


class LoadCollector(Collector):
    """Gauges of the loads of the ranks that report; a silent rank has no series.

    Args:
        book: the book of loads.
        clock: the monotonic clock of the book, in seconds.
    """

    def __init__(self, book: LoadBook, clock: Callable[[], float]) -> None:
        self._book = book
        self._clock = clock

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Name the metrics without values."""
        return self._families()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return one sample per rank that reports."""
        live = self._book.live(self._clock())
        families = self._families()
        for rank, load in live.items():
            for family, value in zip(families, load, strict=False):
                family.add_metric([str(rank)], value)
        families[-1].add_metric([], len(live))
        return families

    @staticmethod
    def _families() -> list[GaugeMetricFamily]:
        return [
            GaugeMetricFamily(
                f"{PREFIX}_waiting_requests", "Requests an engine has waiting.", labels=["engine"]
            ),
            GaugeMetricFamily(
                f"{PREFIX}_running_requests", "Requests an engine computes.", labels=["engine"]
            ),
            GaugeMetricFamily(
                f"{PREFIX}_kv_cache_usage_ratio",
                "Share of an engine's KV cache in use, 0 to 1.",
                labels=["engine"],
            ),
            GaugeMetricFamily(f"{PREFIX}_engines", "Engines that report their load."),
        ]
