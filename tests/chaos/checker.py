"""Whether every request ended exactly once and in one of the ways it may, by what was written down.

It knows what an answer has to be (the prompt's tokens, again and again) and the names of errors,
and nothing else of the clients, servers and engines that it judges.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from chaos.journal import Added, Computed, Dropped, Ended, Event, Sent

RETRYABLE = frozenset({
    "EngineDeadError", "EngineDrainingError", "EngineNotReadyError", "LostOutputsError",
    "OverloadedError",
})  # fmt: skip
"""Errors with which a request may fail because something else did."""

LATE = "RequestTimeoutError"
CUT_SHORT = "ABORT"
"""How a request ends that has not finished when its engine's time to leave is over."""

SUFFIX = 9
"""Characters that a client adds to a request's id for the engine."""


class Histories(NamedTuple):
    """What was written down, by the name of who wrote it.

    `killed` are the clients that were, `orderly` the engines whose servers left in order. Engines
    that were `stuck` at some time may not have heard of what their servers had given up.
    """

    clients: Mapping[str, Sequence[Event]]
    engines: Mapping[str, Sequence[Event]]
    killed: frozenset[str]
    orderly: frozenset[str]
    stuck: frozenset[str]


class Verdict(NamedTuple):
    """What is wrong, in words, and how many requests ended in each way."""

    violations: list[str]
    endings: Counter[str]


def judge(histories: Histories) -> Verdict:
    """Return what in the histories must not be."""
    requests: dict[str, Sent] = {}
    endings: dict[str, Ended] = {}
    violations: list[str] = []
    for client, events in histories.clients.items():
        for event in events:
            if isinstance(event, Sent):
                if event.id in requests:
                    violations.append(f"{event.id}: sent twice by {client}")
                requests[event.id] = event
            elif isinstance(event, Ended):
                if event.id in endings or event.id not in requests:
                    violations.append(f"{event.id}: ended twice, or before it was sent")
                endings[event.id] = event
        violations += _unended(client, events, histories.killed)
    for name, ended in endings.items():
        if name in requests:
            violations += [f"{name}: {text}" for text in _wrong_ending(requests[name], ended)]
    violations += _wrong_engines(histories, requests, endings)
    return Verdict(violations, _counted(endings.values()))


def expected(sent: Sent, count: int) -> list[int]:
    """Return the first `count` tokens of the right answer."""
    return [sent.prompt[index % len(sent.prompt)] for index in range(count)]


def _unended(client: str, events: Sequence[Event], killed: frozenset[str]) -> Iterator[str]:
    """Yield the requests of a client that have no end although it was there to see it."""
    if client in killed:
        return
    sent = {event.id for event in events if isinstance(event, Sent)}
    sent -= {event.id for event in events if isinstance(event, Ended)}
    for name in sorted(sent):
        yield f"{name}: never ended"


def _wrong_ending(sent: Sent, ended: Ended) -> Iterator[str]:
    """Yield what is wrong with how a request ended for its caller."""
    count = len(ended.tokens)
    if ended.tokens != expected(sent, count):
        yield f"tokens were lost, doubled or mixed: {ended.tokens}, prompt {sent.prompt}"
    if count > sent.max_tokens:
        yield f"has {count} of {sent.max_tokens} tokens"
    match ended.how:
        case "finished":
            whole = count == sent.max_tokens and ended.detail == "LENGTH"
            if not whole and ended.detail != CUT_SHORT:
                yield f"finished with {count} of {sent.max_tokens} tokens, {ended.detail}"
        case "left":
            if sent.plan != "leave":
                yield "ended as if its caller had left it, who had not"
        case "failed":
            yield from _wrong_failure(sent, ended)
        case _:
            yield f"broke with {ended.detail}"


def _wrong_failure(sent: Sent, ended: Ended) -> Iterator[str]:
    """Yield what is wrong with the error a request failed with."""
    if ended.detail == LATE:
        if sent.plan != "deadline":
            yield "missed a deadline that it did not have"
    elif ended.detail not in RETRYABLE:
        yield f"failed with {ended.detail}"
    elif sent.retry and not ended.tokens:
        yield f"failed with {ended.detail} although it could have been sent again"


class _Work(NamedTuple):
    """What engines did, by requests' names: who got each, which were computed to their end, and
    which were dropped by an engine that left in order later."""

    added: defaultdict[str, list[str]]
    computed: set[str]
    cut_short: set[str]


def _wrong_engines(
    histories: Histories, requests: Mapping[str, Sent], endings: Mapping[str, Ended]
) -> Iterator[str]:
    """Yield what engines did that they should not have been asked to, or not have left undone."""
    work = _Work(defaultdict(list), set(), set())
    for engine, events in histories.engines.items():
        yield from _wrong_work(engine, events, requests, work)
        if engine in histories.orderly:
            left = _left_over(events)
            if engine not in histories.stuck:
                yield from (f"{name}: {engine} was left with it" for name in sorted(left))
            dropped = {event.id for event in events if isinstance(event, Dropped)}
            work.cut_short.update(map(_name, left | dropped))
    for name, places in work.added.items():
        if name not in requests:
            yield f"{name}: {places} got it, nobody sent it"
        elif len(places) > 1 and not requests[name].retry:
            yield f"{name}: {places} got it, which was to be sent once"
    for name, ended in endings.items():
        if ended.how == "finished":
            if ended.detail == CUT_SHORT and name not in work.cut_short:
                yield f"{name}: cut short, and no engine that had it left"
            elif ended.detail != CUT_SHORT and name not in work.computed:
                yield f"{name}: finished, and no engine computed it"


def _wrong_work(
    engine: str, events: Sequence[Event], requests: Mapping[str, Sent], work: _Work
) -> Iterator[str]:
    """Yield what is wrong with one engine's answers, and add its work to all the work."""
    begun: set[str] = set()
    for event in events:
        match event:
            case Added(id):
                work.added[_name(id)].append(engine)
                begun.add(id)
            case Computed(id, tokens):
                sent = requests.get(_name(id))
                if id not in begun or (sent is not None and tokens != sent.max_tokens):
                    yield f"{id}: {engine} computed {tokens} tokens of it"
                begun.discard(id)
                work.computed.add(_name(id))


def _left_over(events: Sequence[Event]) -> set[str]:
    """Return what an engine still had to do at its end."""
    had = {event.id for event in events if isinstance(event, Added)}
    return had - {event.id for event in events if isinstance(event, Computed | Dropped)}


def _name(internal_id: str) -> str:
    """Return a request's id from what the engine calls it."""
    return internal_id[:-SUFFIX]


def _counted(endings: Iterable[Ended]) -> Counter[str]:
    return Counter(
        ended.how if ended.how == "left" else f"{ended.how} {ended.detail}" for ended in endings
    )
