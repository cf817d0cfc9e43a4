"""A request inside the engine: its tokens, how far it is computed, and the blocks it holds."""

from enum import Enum, auto

from enginecore_wire.outputs import EngineCoreEvent, EventType
from enginecore_wire.requests import EngineCoreRequest, SamplingParams


class SequenceStatus(Enum):
    """Where a sequence is between arrival and its end."""

    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED = auto()


class Sequence:
    """The state of one request.

    `tokens` holds the prompt and then every generated token; the first `num_computed` of
    them have keys and values in the cache, in the blocks `block_ids` in order. `digests[i]`
    identifies the content of block i and everything before it. `order` counts arrivals.
    """

    __slots__ = (
        "block_ids", "cache_salt", "client_index", "digests", "events", "num_cached",
        "num_computed", "order", "params", "preemptions", "priority", "prompt_length",
        "reads_cache", "registered_blocks", "request_id", "status", "tokens", "trace_headers",
    )  # fmt: skip

    def __init__(self, request: EngineCoreRequest, params: SamplingParams, order: int) -> None:
        assert request.prompt_token_ids
        self.request_id = request.request_id
        self.client_index = request.client_index
        self.priority = request.priority
        self.params = params
        self.order = order
        self.tokens: list[int] = list(request.prompt_token_ids)
        self.prompt_length = len(self.tokens)
        self.num_computed = 0
        self.num_cached: int | None = None
        self.block_ids: list[int] = []
        self.digests: list[bytes] = []
        self.registered_blocks = 0
        self.cache_salt = request.cache_salt or ""
        self.trace_headers = request.trace_headers
        self.reads_cache = params.prompt_logprobs is None and not params.skip_reading_prefix_cache
        self.status = SequenceStatus.WAITING
        self.events: list[EngineCoreEvent] = []
        self.preemptions = 0

    @property
    def num_outputs(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def num_uncomputed(self) -> int:
        """Tokens without keys and values in the cache."""
        return len(self.tokens) - self.num_computed

    def record(self, event: EventType, now: float) -> None:
        """Note an event for the next output; `now` is monotonic seconds."""
        self.events.append(EngineCoreEvent(event, now))

    def take_events(self) -> list[EngineCoreEvent] | None:
        """Return the events since the last call, or None if there were none."""
        if not self.events:
            return None
        events, self.events = self.events, []
        return events
