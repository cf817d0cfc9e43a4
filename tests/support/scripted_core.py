"""An EngineCore in this process, scripted by a test: token i is `prompt[i % len(prompt)]`."""

from collections.abc import Callable, Sequence
from typing import Any

from enginecore_wire.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    SchedulerStats,
)
from enginecore_wire.problems import RequestLimits
from enginecore_wire.requests import EngineCoreRequest


class ScriptedCore:
    """What InprocClient takes for an engine.

    Attributes:
        results: values of utility calls by method; an exception is raised.
        before_step: called at the beginning of each step.
        paused: steps compute nothing.
        adds, aborts, calls: what came; `threads` counts how many are inside at once.
        ended: how often it was shut down.
    """

    def __init__(self, **limits: Any) -> None:
        self.limits = RequestLimits(**({"vocab_size": 1000, "max_model_len": 100} | limits))
        self.results: dict[str, Any] = {"get_supported_tasks": ["generate"]}
        self.before_step: Callable[[], None] = lambda: None
        self.refuse: Exception | None = None
        self.paused = False
        self.adds: list[EngineCoreRequest] = []
        self.aborts: list[str] = []
        self.calls: list[tuple[str, list[Any]]] = []
        self.steps = 0
        self.ended = 0
        self.running: dict[str, tuple[EngineCoreRequest, int]] = {}

    def add_request(self, request: EngineCoreRequest) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.adds.append(request)
        self.running[request.request_id] = request, 0

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self.aborts += request_ids
        for name in request_ids:
            self.running.pop(name, None)

    def has_work(self) -> bool:
        return bool(self.running) and not self.paused

    def step(self) -> dict[int, EngineCoreOutputs]:
        self.before_step()
        self.steps += 1
        by_client: dict[int, list[EngineCoreOutput]] = {}
        for name, (request, count) in list(self.running.items()):
            prompt = request.prompt_token_ids or [0]
            assert request.sampling_params is not None
            last = count + 1 == request.sampling_params.max_tokens
            reason = FinishReason.LENGTH if last else None
            output = EngineCoreOutput(name, [prompt[count % len(prompt)]], finish_reason=reason)
            by_client.setdefault(request.client_index, []).append(output)
            self.running[name] = request, count + 1
            if last:
                del self.running[name]
        stats = SchedulerStats(num_running_reqs=len(self.running))
        return {
            client: EngineCoreOutputs(0, outputs, scheduler_stats=stats, timestamp=1.0)
            for client, outputs in by_client.items()
        }

    def call(self, method: str, args: Sequence[Any]) -> Any:
        self.calls.append((method, list(args)))
        if method not in self.results:
            raise ValueError(f"no method {method}")
        result = self.results[method]
        if isinstance(result, Exception):
            raise result
        return result

    def shutdown(self) -> None:
        self.running.clear()
        self.ended += 1
