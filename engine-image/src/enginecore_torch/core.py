"""The EngineCore: requests in, one step at a time, outputs by client. No sockets, no threads."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from enginecore_torch.admission import DuplicateRequestError, admit
from enginecore_torch.runner import ModelRunner, StepResult
from enginecore_torch.scheduler import Pause, Scheduler
from enginecore_torch.sequence import Sequence as Tokens
from enginecore_torch.stopping import End, end_of
from enginecore_torch.utilities import Utilities
from enginecore_wire.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    PrefillStats,
    SchedulerStats,
)
from enginecore_wire.problems import RequestLimits
from enginecore_wire.requests import EngineCoreRequest


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """`rank` goes into every message; with `report_finished` messages also list the ids of
    ended requests, which front ends behind a coordinator count on."""

    rank: int = 0
    report_finished: bool = False


DEFAULT_OPTIONS = CoreOptions()


class EngineCore:
    """Holds requests and computes one step for all of them at a time (an `EngineLike`).

    Not safe across threads.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        limits: RequestLimits,
        clock: Callable[[], float],
        options: CoreOptions = DEFAULT_OPTIONS,
        utilities: Utilities | None = None,
    ) -> None:
        """Make an engine.

        Args:
            scheduler: chooses what a step computes.
            runner: computes it.
            limits: what requests are held to.
            clock: monotonic seconds.
            options: how outputs are labelled.
            utilities: answers `call`; None makes the default ones, without a profiler.
        """
        self.limits = limits
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._options = options
        self._utilities = utilities or Utilities(None)
        self._order = 0
        self._steps = 0
        self._clear_when_drained = False
        self._pending: dict[int, list[EngineCoreOutput]] = defaultdict(list)
        self._aborted: dict[int, list[str]] = defaultdict(list)

    def add_request(self, request: EngineCoreRequest) -> None:
        """Take a request in.

        Raises:
            DuplicateRequestError: an unfinished request has this id.
            ValueError: the request cannot be computed; the text names field and limit.
        """
        if request.request_id in self._scheduler:
            raise DuplicateRequestError(
                f"request_id: {request.request_id!r} is running; use an id of your own per request"
            )
        params = admit(request, self.limits)
        self._order += 1
        self._scheduler.add(Tokens(request, params, self._order), self._clock())

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Forget requests; unknown ids are ignored and no output follows.

        The next step reports the load without them, and their ends where ends are reported.
        """
        for request_id in request_ids:
            sequence = self._forget(request_id)
            if sequence is not None:
                self._aborted[sequence.client_index].append(request_id)

    def abort_all(self) -> None:
        """End every request; the next step's outputs say ABORT for each."""
        for sequence in self._scheduler:
            self._forget(sequence.request_id)
            self._pending[sequence.client_index].append(
                _ended(sequence.request_id, FinishReason.ABORT)
            )

    def has_work(self) -> bool:
        """Say whether a step would compute or report anything."""
        return bool(self._pending or self._aborted) or self._scheduler.has_work

    @property
    def num_in_service(self) -> int:
        """Unfinished requests that came before the pause, if there is one."""
        return self._scheduler.num_in_service

    def step(self) -> dict[int, EngineCoreOutputs]:
        """Compute one step and return its outputs by client index; {} when there is no work.

        The scheduler's stats are with the first client that has outputs, or with client 0.
        """
        if not self.has_work():
            return {}
        batch = self._scheduler.schedule(self._clock())
        results = self._runner.run(batch)
        self._scheduler.advance(batch)
        by_client, self._pending = self._pending, defaultdict(list)
        aborted, self._aborted = self._aborted, defaultdict(list)
        for item, result in zip(batch, results, strict=True):
            output = self._postprocess(item.sequence, result)
            if output is not None:
                by_client[item.sequence.client_index].append(output)
        if batch:
            self._steps += 1
        if self._clear_when_drained:
            self.clear_cache_when_drained()
        now = self._clock()
        clients = dict.fromkeys([*by_client, *(aborted if self._options.report_finished else ())])
        messages = {
            client: self._message(by_client.get(client, []), aborted.get(client, []), now)
            for client in clients
        }
        first = next(iter(messages.values()), None)
        if first is None:
            first = messages[0] = self._message([], [], now)
        first.scheduler_stats = self.stats()
        return messages

    def call(self, method: str, args: Sequence[Any]) -> Any:
        """Run a utility call and return its value.

        Raises:
            ValueError: there is no such method, or the arguments do not fit it.
        """
        return self._utilities.call(self, method, args)

    def shutdown(self) -> None:
        """End every request and stop the profiler; the engine is not used again."""
        self.abort_all()
        self._utilities.close()

    def stats(self) -> SchedulerStats:
        """Return the scheduler's state; counts of the prefix cache start anew."""
        stats = self.gauges()
        stats.prefix_cache_stats = self._scheduler.take_cache_stats()
        return stats

    def gauges(self) -> SchedulerStats:
        """Return the load alone, without touching any count."""
        return SchedulerStats(
            num_running_reqs=self._scheduler.num_running,
            num_waiting_reqs=self._scheduler.num_waiting,
            step_counter=self._steps,
            kv_cache_usage=self._scheduler.pool.usage,
        )

    @property
    def load(self) -> tuple[int, int]:
        """Waiting and running requests."""
        return self._scheduler.num_waiting, self._scheduler.num_running

    @property
    def pause(self) -> Pause:
        """What is paused now."""
        return self._scheduler.pause

    def set_pause(self, pause: Pause) -> None:
        """Pause new or all requests, or go on."""
        self._scheduler.set_pause(pause)

    def reset_prefix_cache(self, preempt: bool) -> bool:
        """Empty the prefix cache; say whether it was done.

        Args:
            preempt: take the blocks from running requests first; otherwise nothing is done
                while there are any.
        """
        if preempt:
            self._scheduler.preempt_all(self._clock())
        return self._scheduler.reset_cache()

    def clear_cache_when_drained(self) -> None:
        """Empty the prefix cache once no request is in service."""
        drained = self.num_in_service == 0
        if drained:
            self.reset_prefix_cache(preempt=False)
        self._clear_when_drained = not drained

    def run_dummy(self) -> None:
        """Compute one token that belongs to nobody."""
        self._runner.run_dummy()

    def _postprocess(self, sequence: Tokens, result: StepResult) -> EngineCoreOutput | None:
        if result.sampled is None:
            return None
        token = result.sampled.token_id
        if token is None:
            tokens: list[int] = []
            end: End | None = End(FinishReason.ERROR)
        else:
            sequence.tokens.append(token)
            tokens, end = [token], end_of(sequence, self.limits.max_model_len)
        output = EngineCoreOutput(
            sequence.request_id,
            tokens,
            new_logprobs=result.sampled.logprobs,
            new_prompt_logprobs=result.prompt_logprobs,
            events=sequence.take_events(),
            trace_headers=sequence.trace_headers,
            prefill_stats=_prefill_stats(sequence) if sequence.num_outputs <= 1 else None,
        )
        if end is not None:
            output.finish_reason, output.stop_reason = end
            self._forget(sequence.request_id)
        return output

    def _forget(self, request_id: str) -> Tokens | None:
        """Drop a request; return it, or None if there is no such request."""
        sequence = self._scheduler.finish(request_id)
        if sequence is not None:
            self._runner.forget(request_id)
        return sequence

    def _message(
        self, outputs: list[EngineCoreOutput], aborted: list[str], now: float
    ) -> EngineCoreOutputs:
        finished = None
        if self._options.report_finished:
            ended = [o.request_id for o in outputs if o.finish_reason is not None]
            finished = [*ended, *aborted] or None
        return EngineCoreOutputs(
            self._options.rank, outputs, timestamp=now, finished_requests=finished
        )


def _ended(request_id: str, reason: FinishReason) -> EngineCoreOutput:
    return EngineCoreOutput(request_id, [], finish_reason=reason)


def _prefill_stats(sequence: Tokens) -> PrefillStats:
    cached = sequence.num_cached or 0
    return PrefillStats(
        num_prompt_tokens=sequence.prompt_length,
        num_computed_tokens=sequence.prompt_length - cached,
        num_cached_tokens=cached,
        num_local_cached_tokens=cached,
    )
