"""A program with one client that asks for answers until it is told to stop:

    python -m chaos.client NAME KIND ADDRESSES JOURNAL SEED any|patient

SIGTERM lets it end what it has begun; then it exits with status 0.
"""

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

from chaos.journal import Ended, Journal
from chaos.plans import Plan, plan
from enginecore_client import (
    AsyncMPClient,
    DPLBAsyncMPClient,
    EngineCoreError,
    OutputKind,
    SamplingParams,
    SyncMPClient,
)
from enginecore_wire.outputs import EngineCoreOutput, FinishReason

ASYNC_KINDS: Final[dict[str, Any]] = {"async": AsyncMPClient, "balanced": DPLBAsyncMPClient}
KINDS: Final = ("async", "balanced", "sync")
PATIENT: Final = "patient"

CALLERS: Final = 8
"""How many requests a client has at a time."""

PATIENCE_SECONDS: Final = 120.0
"""How long it waits for engines at the beginning."""

PAUSE_SECONDS: Final = 0.02
"""How long a caller rests after a failure."""


class Caller:
    """Has plans, and writes down what becomes of them.

    Args:
        name: of the client; ids begin with it.
        journal: where.
        random: what plans are drawn from.
        patient: see `plan`.
    """

    def __init__(self, name: str, journal: Journal, random: Random, *, patient: bool) -> None:
        self._name = name
        self._patient = patient
        self._journal = journal
        self._random = random
        self._numbers = count()
        self._drawing = threading.Lock()

    def next(self) -> Plan:
        """Return the next plan."""
        with self._drawing:
            name = f"{self._name}.{next(self._numbers)}"
            return plan(self._random, name, patient=self._patient)

    @contextmanager
    def request(self, plan: Plan) -> Iterator["Answer"]:
        """Write down that a request is sent, and how it ended; errors end here."""
        self._journal.write(plan.sent)
        answer = Answer(plan)
        try:
            yield answer
        except EngineCoreError as error:
            answer.end("failed", type(error).__name__)
        except Exception as error:  # noqa: BLE001 - whatever it is, the judge is to see it
            answer.end("broke", repr(error))
        self._journal.write(answer.ended)


class Answer:
    """What has come of an answer; `ended` is how it ended."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tokens: list[int] = []
        self.ended = Ended(plan.sent.id, self.tokens, "broke", "the stream ended without an end")

    def take(self, output: EngineCoreOutput) -> None:
        """Take note of an output."""
        self.tokens += output.new_token_ids
        if output.finish_reason is not None:
            self.end("finished", FinishReason(output.finish_reason).name)

    def is_left(self, taken: int) -> bool:
        """Say whether the caller leaves now, after so many outputs."""
        if taken != self.plan.after:
            return False
        self.end("left")
        return True

    def end(self, how: str, detail: str = "") -> None:
        """Take note of how it ended."""
        self.ended = Ended(self.plan.sent.id, self.tokens, how, detail)

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `generate`."""
        sent = self.plan.sent
        params = SamplingParams(
            max_tokens=sent.max_tokens, ignore_eos=True, output_kind=OutputKind.DELTA
        )
        return {
            "prompt_token_ids": sent.prompt, "sampling_params": params, "request_id": sent.id,
            "retry": sent.retry, "deadline": self.plan.deadline,
        }  # fmt: skip


async def run_async(kind: str, addresses: str, caller: Caller) -> None:
    """Ask until SIGTERM, with tasks."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)

    async def call(client: Any) -> None:
        while not stopped.is_set():
            with caller.request(caller.next()) as answer:
                await read(client, answer)
            if answer.ended.how == "failed":
                await asyncio.sleep(PAUSE_SECONDS)

    async with ASYNC_KINDS[kind](addresses, ready_timeout=PATIENCE_SECONDS) as client:
        await asyncio.gather(*(call(client) for _ in range(CALLERS)))


async def read(client: Any, answer: Answer) -> None:
    """Read one answer as far as its caller wants it."""
    stream = client.generate(**answer.arguments)
    taken = 0
    while not answer.is_left(taken):
        try:
            output = await anext(stream)
        except StopAsyncIteration:
            return
        answer.take(output)
        taken += 1
    await stream.aclose()


def run_sync(addresses: str, caller: Caller) -> None:
    """Ask until SIGTERM, with threads."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())

    def call(client: SyncMPClient) -> None:
        while not stopped.is_set():
            with caller.request(caller.next()) as answer:
                read_sync(client, answer)
            if answer.ended.how == "failed":
                time.sleep(PAUSE_SECONDS)

    with SyncMPClient(addresses, ready_timeout=PATIENCE_SECONDS) as client:
        threads = [threading.Thread(target=call, args=(client,)) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(PAUSE_SECONDS)  # signals are handled between two of these


def read_sync(client: SyncMPClient, answer: Answer) -> None:
    """Read one answer as far as its caller wants it."""
    with client.generate(**answer.arguments) as stream:
        taken = 0
        while not answer.is_left(taken):
            output = next(stream, None)
            if output is None:
                return
            answer.take(output)
            taken += 1


def main(arguments: list[str]) -> None:
    """Run the client that the arguments describe."""
    name, kind, addresses, journal, seed, callers = arguments
    caller = Caller(name, Journal(Path(journal)), Random(seed), patient=callers == PATIENT)
    if kind == "sync":
        run_sync(addresses, caller)
    else:
        asyncio.run(run_async(kind, addresses, caller))


if __name__ == "__main__":
    main(sys.argv[1:])
