"""The operator's own metrics, on a registry passed in."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class OperatorMetrics:
    """Counters, gauges and histograms of one operator process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reconciles = Counter(
            "enginecore_operator_reconcile",
            "Passes over one object, by outcome.",
            ["kind", "outcome"],
            registry=registry,
        )
        self.reconcile_seconds = Histogram(
            "enginecore_operator_reconcile_seconds",
            "Duration of a pass.",
            ["kind"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.queue = Gauge(
            "enginecore_operator_queue_length", "Objects that wait for a pass.", registry=registry
        )
        self.leader = Gauge(
            "enginecore_operator_leader", "1 while this process leads.", registry=registry
        )
        self.requests = Counter(
            "enginecore_operator_api_requests",
            "Requests to the API server.",
            ["verb", "kind", "outcome"],
            registry=registry,
        )
        self.request_seconds = Histogram(
            "enginecore_operator_api_request_seconds",
            "Duration of requests to the API server.",
            ["verb"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.watch_events = Counter(
            "enginecore_operator_watch_events",
            "Events of the watches.",
            ["kind"],
            registry=registry,
        )
        self.watch_missed = Counter(
            "enginecore_operator_watch_missed",
            "Changes that a list showed and the watch had not told.",
            ["kind"],
            registry=registry,
        )
        self.status_reads = Counter(
            "enginecore_operator_status_reads",
            "Status pages of engines read, by outcome.",
            ["outcome"],
            registry=registry,
        )

    def observe_request(self, verb: str, kind: str, outcome: str, seconds: float) -> None:
        """Take note of one request to the API server."""
        self.requests.labels(verb, kind, outcome).inc()
        self.request_seconds.labels(verb).observe(seconds)
