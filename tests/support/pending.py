"""Calls of a client that are under way, and how and when each of them fails."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from enginecore_client import EngineCoreError
from enginecore_wire.requests import EngineCoreRequest
from support.faces import Face, params

STREAMS = 4
PROMPT = [1, 2, 3]
FIRST_SECONDS = 30.0


class Failure(NamedTuple):
    """Which call raised what, and when in monotonic seconds."""

    call: str
    error: EngineCoreError
    at: float


class Pending:
    """Every kind of call of one client to one engine, each repeated until it fails.

    Args:
        face: the client.
        rank: the engine.
        tokens: how long its requests are; they must outlive the engine.
        threads: where the calls wait.
    """

    def __init__(self, face: Face, rank: int, tokens: int, threads: ThreadPoolExecutor) -> None:
        self._answered: list[threading.Event] = []
        self._stopped = threading.Event()
        request = EngineCoreRequest(
            "polled", PROMPT, sampling_params=params(tokens), data_parallel_rank=rank
        )
        face.add(request)
        reads: dict[str, Callable[[], object]] = {
            "get_output": face.get_output,
            "is_sleeping": lambda: face.call("is_sleeping", engine=rank),
        }
        for number in range(STREAMS):
            stream = face.generate(PROMPT, params(tokens), data_parallel_rank=rank)
            reads[f"stream {number}"] = stream.__next__
        self._futures: list[Future[Failure]] = [
            threads.submit(self._until, *item) for item in reads.items()
        ]

    def wait_first(self) -> None:
        """Return once each call was answered, or each stream began."""
        for answered in self._answered:
            assert answered.wait(FIRST_SECONDS), "a call was never answered"
        assert len(self._answered) == len(self._futures)

    def failures(self, seconds: float) -> list[Failure]:
        """Return how all of them failed.

        Raises:
            AssertionError: some did not within `seconds`; none of them goes on.
        """
        wait(self._futures, seconds)
        self._stopped.set()
        return [future.result(FIRST_SECONDS) for future in self._futures]

    def _until(self, name: str, read: Callable[[], object]) -> Failure:
        answered = threading.Event()
        self._answered.append(answered)
        while not self._stopped.is_set():
            try:
                read()
            except EngineCoreError as error:
                return Failure(name, error, time.monotonic())
            except StopIteration:
                break
            answered.set()
        raise AssertionError(f"{name} did not fail")


class Load:
    """Short requests to one engine (`rank` None: to any), one after another until stopped; each
    must come whole."""

    TOKENS = 24

    def __init__(self, face: Face, rank: int | None, threads: ThreadPoolExecutor) -> None:
        self.served = 0
        self._face = face
        self._rank = rank
        self._stop = threading.Event()
        self._future = threads.submit(self._run)

    def stop(self) -> int:
        """Stop; return how many requests were served. Raises what one of them failed with."""
        self._stop.set()
        self._future.result(FIRST_SECONDS)
        return self.served

    def _run(self) -> None:
        while not self._stop.is_set():
            stream = self._face.generate(PROMPT, params(self.TOKENS), data_parallel_rank=self._rank)
            assert sum(len(output.new_token_ids) for output in stream) == self.TOKENS
            self.served += 1


def tokens_for(face: Face, rank: int, seconds: float) -> int:
    """Return how many tokens take an engine about so long on this machine, as busy as it is."""
    sample = 200
    started = time.monotonic()
    list(face.generate(PROMPT, params(sample), data_parallel_rank=rank))
    return int(sample * seconds / (time.monotonic() - started))


def serves(face: Face, rank: int, tokens: int = 4) -> bool:
    """Say whether an engine serves a request of this client now.

    Raises:
        EngineCoreError: it never will: the error is not one to try again after.
    """
    try:
        outputs = list(face.generate(PROMPT, params(tokens), data_parallel_rank=rank))
    except EngineCoreError as error:
        if not error.retryable:
            raise
        return False
    return sum(len(output.new_token_ids) for output in outputs) == tokens
