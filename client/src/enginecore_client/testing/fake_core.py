"""An EngineCore without a model: what it answers is known beforehand, or said by a test.

No sockets, no threads: InprocClient takes it as it is, and FakeEngine puts it behind sockets.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from enginecore_wire.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    SchedulerStats,
)
from enginecore_wire.problems import RequestLimits
from enginecore_wire.requests import EngineCoreRequest, SamplingParams

PAUSE_MODES: Final = ("abort", "wait", "keep")


class FakeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a fake engine is from its beginning.

    Attributes:
        max_model_len: most tokens of a prompt and its answer together.
        vocab_size: token ids are below it.
        max_num_seqs: how many requests are computed at a time; the others wait.
        hidden_size: width of the prompt embeddings that are taken; 0 for token ids only.
        tokens: most tokens of an answer; None for as many as are asked for.
        token_seconds: what a step takes; not in this process, where nothing waits for it.
        load_seconds: how long it takes to be ready; likewise.
        stats: whether each step says how many requests run and wait.
        keep_requests: whether `adds` holds every request that came.
    """

    max_model_len: int = 2048
    vocab_size: int = 1000
    max_num_seqs: int = 256
    hidden_size: int = 0
    tokens: int | None = None
    token_seconds: float = 0.0
    load_seconds: float = 0.0
    stats: bool = True
    keep_requests: bool = True


DEFAULT_SETTINGS: Final = FakeSettings()


class FakeEngineDiedError(Exception):
    """What came, or what a test asked for, ends an engine."""


class Running(msgspec.Struct):
    """An unfinished request: `position` tokens of `total` were sent.

    The token at a position is `tokens[position % len(tokens)]`, and the last one comes with
    `reason` unless a token in `stops` ends it before.
    """

    request: EngineCoreRequest
    tokens: Sequence[int]
    total: int
    reason: FinishReason
    stops: frozenset[int]
    position: int = 0


class FakeEngineCore:
    """An `EngineLike` whose token i of a request is `prompt[i % len(prompt)]`.

    Requests that would kill a real engine kill this one, too: an id that is running, a token
    past the vocabulary, a prompt past the context.

    Args:
        settings: what it is; `fields` of it may be given alone.

    Attributes:
        answer: makes the tokens of a request, which ends with STOP after them; None for the
            prompt, again and again.
        results: values of control calls by method, for those that are to be other than usual; a
            function is called with the arguments, an exception is raised.
        workers: the functions that `collective_rpc` finds, by name.
        before_step: called before each step; what it raises breaks the engine.
        refuse: raised for each request that comes; None for none.
        paused: steps compute nothing.
        journal: all that came: `("add", id)`, `("abort", ids)`, `("utility", method)`.
        adds, aborts, calls: the requests, the ids that were aborted, the calls with arguments.
        running, waiting: unfinished requests by id, in service and before it.
        steps: how many there were.
        ended: how often it was shut down.
    """

    def __init__(self, settings: FakeSettings = DEFAULT_SETTINGS, **fields: Any) -> None:
        self.settings = msgspec.structs.replace(settings, **fields)
        self.limits = RequestLimits(
            vocab_size=self.settings.vocab_size,
            max_model_len=self.settings.max_model_len,
            hidden_size=self.settings.hidden_size,
        )
        self.answer: Callable[[EngineCoreRequest], Sequence[int]] | None = None
        self.results: dict[str, Any] = {}
        self.workers: dict[str, Callable[..., Any]] = {
            "echo": _echo,
            "journal": lambda: self.journal,
        }
        self.before_step: Callable[[], object] = _nothing
        self.refuse: Exception | None = None
        self.paused = False
        self.journal: list[tuple[str, Any]] = []
        self.adds: list[EngineCoreRequest] = []
        self.aborts: list[str] = []
        self.calls: list[tuple[str, list[Any]]] = []
        self.running: dict[str, Running] = {}
        self.waiting: dict[str, Running] = {}
        self.steps = 0
        self.ended = 0
        self._pause = ""
        self._ready: dict[int, list[EngineCoreOutput]] = {}
        self._methods: dict[str, Callable[..., Any]] = {
            "get_supported_tasks": lambda: ["generate"],
            "is_sleeping": lambda: bool(self._pause),
            "is_scheduler_paused": lambda: bool(self._pause),
            "list_loras": list,
            "reset_prefix_cache": lambda *_: not self.running,
            "pause_scheduler": self._on_pause,
            "resume_scheduler": self._on_resume,
            "collective_rpc": self._on_rpc,
        }

    def add_request(self, request: EngineCoreRequest) -> None:
        """Take a request in.

        Raises:
            FakeEngineDiedError: a real engine would not survive it.
        """
        self.journal.append(("add", request.request_id))
        if self.refuse is not None:
            raise self.refuse
        if self.settings.keep_requests:
            self.adds.append(request)
        prompt = self._prompt(request)
        params = request.sampling_params
        if params is None or params.max_tokens is None:
            self._end(request, FinishReason.ERROR)
            return
        entry = self._entry(request, prompt, params)
        full = self._pause or len(self.running) >= self.settings.max_num_seqs
        (self.waiting if full else self.running)[request.request_id] = entry

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Forget requests; unknown ids are ignored and no output follows."""
        self.journal.append(("abort", list(request_ids)))
        self.aborts += request_ids
        for request_id in request_ids:
            self.running.pop(request_id, None)
            self.waiting.pop(request_id, None)

    def abort_all(self) -> None:
        """End every request; the next step's outputs say ABORT for each."""
        for entry in (*self.running.values(), *self.waiting.values()):
            self._end(entry.request, FinishReason.ABORT)
        self.running.clear()
        self.waiting.clear()

    def has_work(self) -> bool:
        """Say whether a step would compute or report anything."""
        if self._ready:
            return True
        if self.paused or self._pause == "keep":
            return False
        return bool(self.running or (self.waiting and not self._pause))

    def step(self) -> dict[int, EngineCoreOutputs]:
        """Give every running request its next token; return outputs by client index."""
        self.before_step()
        self.steps += 1
        by_client, self._ready = self._ready, {}
        if not self.paused and self._pause != "keep":
            self._compute(by_client)
        messages = {client: EngineCoreOutputs(0, each) for client, each in by_client.items()}
        if messages and self.settings.stats:
            next(iter(messages.values())).scheduler_stats = self.stats()
        return messages

    def call(self, method: str, args: Sequence[Any]) -> Any:
        """Run a control call and return its value.

        Raises:
            ValueError: there is no such method, or the arguments do not fit it.
        """
        self.journal.append(("utility", method))
        self.calls.append((method, list(args)))
        if method in self.results:
            result = self.results[method]
            if isinstance(result, Exception):
                raise result
            return result(*args) if callable(result) else result
        if method not in self._methods:
            raise ValueError(f"no method {method}")
        return self._methods[method](*args)

    def shutdown(self) -> None:
        """End every request; the engine is not used again."""
        self.abort_all()
        self.ended += 1

    @property
    def num_in_service(self) -> int:
        """How many requests a call that waits for those in service waits for."""
        return len(self.running)

    def stats(self) -> SchedulerStats:
        """Return the load."""
        used = len(self.running)
        return SchedulerStats(
            num_running_reqs=used,
            num_waiting_reqs=len(self.waiting),
            step_counter=self.steps,
            kv_cache_usage=min(1.0, used / self.settings.max_num_seqs),
        )

    def output_of(
        self, entry: Running, token: int, reason: FinishReason | None
    ) -> EngineCoreOutput:
        """Return the output that carries a token; for derived engines that have more to say."""
        return EngineCoreOutput(
            entry.request.request_id,
            [token],
            finish_reason=reason,
            trace_headers=entry.request.trace_headers,
        )

    def _compute(self, by_client: dict[int, list[EngineCoreOutput]]) -> None:
        while self.waiting and not self._pause and len(self.running) < self.settings.max_num_seqs:
            request_id = next(iter(self.waiting))
            self.running[request_id] = self.waiting.pop(request_id)
        for request_id, entry in list(self.running.items()):
            token = entry.tokens[entry.position % len(entry.tokens)]
            entry.position += 1
            reason = entry.reason if entry.position >= entry.total else None
            if token in entry.stops:
                reason = FinishReason.STOP
            if reason is not None:
                del self.running[request_id]
            output = self.output_of(entry, token, reason)
            if token in entry.stops:
                output.stop_reason = token
            by_client.setdefault(entry.request.client_index, []).append(output)

    def _prompt(self, request: EngineCoreRequest) -> list[int]:
        prompt = request.prompt_token_ids
        if prompt is None and request.prompt_embeds is not None and self.limits.hidden_size:
            prompt = [0] * request.prompt_embeds.shape[0]
        if request.request_id in self.running or request.request_id in self.waiting:
            raise FakeEngineDiedError(f"duplicate request id {request.request_id}")
        if not prompt or max(prompt) >= self.limits.vocab_size:
            raise FakeEngineDiedError("token ids out of range")
        if len(prompt) > self.limits.max_model_len:
            raise FakeEngineDiedError("prompt longer than the context")
        return prompt

    def _entry(
        self, request: EngineCoreRequest, prompt: list[int], params: SamplingParams
    ) -> Running:
        assert params.max_tokens is not None
        total = min(params.max_tokens, max(1, self.limits.max_model_len - len(prompt)))
        if self.settings.tokens is not None:
            total = min(total, self.settings.tokens)
        tokens: Sequence[int] = prompt
        reason = FinishReason.LENGTH
        if self.answer is not None:
            tokens = self.answer(request)
            if not tokens:
                raise ValueError("answer: got no tokens, allowed: at least one")
            if len(tokens) <= total:
                total, reason = len(tokens), FinishReason.STOP
        stops = set(params.stop_token_ids or ())
        if params.eos_token_id is not None and not params.ignore_eos:
            stops.add(params.eos_token_id)
        return Running(request, tokens, total, reason, frozenset(stops))

    def _end(self, request: EngineCoreRequest, reason: FinishReason) -> None:
        output = EngineCoreOutput(request.request_id, [], finish_reason=reason)
        self._ready.setdefault(request.client_index, []).append(output)

    def _on_pause(self, mode: str = "abort", clear_cache: bool = True) -> None:  # noqa: ARG002
        if mode not in PAUSE_MODES:
            raise ValueError(f"mode: got {mode!r}, allowed: {', '.join(PAUSE_MODES)}")
        self._pause = mode
        if mode == "abort":
            self.abort_all()

    def _on_resume(self) -> None:
        self._pause = ""

    def _on_rpc(
        self,
        method: str,
        timeout: float | None = None,  # noqa: ARG002 - nothing here takes long
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        if method not in self.workers:
            raise ValueError(f"no method {method} on the worker")
        return [self.workers[method](*args, **(kwargs or {}))]


def _echo(value: Any) -> Any:
    return value


def _nothing() -> None:
    """No step is special."""
