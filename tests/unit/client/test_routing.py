"""vLLM's load score and who wins by it."""

from collections import Counter

import pytest

from enginecore_client import EngineCoreRequest, RequestRejectedError, SamplingParams
from enginecore_client._core.events import RequestEnded
from enginecore_client._core.routing import Balancer, keeper_of, score
from enginecore_wire.coordination import EngineLoad
from enginecore_wire.requests import LateInteraction, PoolingParams
from support.memory_link import MemoryLink

SCORES = [
    # in flight, (waiting, running, kv), clients, score
    (0, (0, 0, 0.0), 1, 0.0),
    (3, (0, 0, 0.0), 1, 3.0),
    (3, (0, 0, 0.0), 4, 12.0),
    (1, (2, 5, 0.0), 1, 7.0),
    (1, (0, 5, 1.0), 1, 5.0),
    (1, (2, 5, 0.4), 1, 7.0),
    (1, (2, 5, 0.75), 1, 7.0 + 2 * 6 * 0.25),
    (10, (2, 5, 1.0), 2, 20.0 + 2 * 6 * 0.5),
]


@pytest.mark.parametrize(("in_flight", "load", "clients", "expected"), SCORES)
def test_score(in_flight: int, load, clients: int, expected: float) -> None:
    assert score(in_flight, EngineLoad(*load), clients) == pytest.approx(expected)


@pytest.mark.parametrize("engines", [1, 2, 3, 8])
def test_fault_22910_the_first_2n_requests_are_split_evenly(engines: int) -> None:
    balancer: Balancer[int] = Balancer()
    in_flight = dict.fromkeys(range(engines), 0)
    chosen = Counter()
    for _ in range(2 * engines):
        engine = balancer.choose(in_flight)
        in_flight[engine] += 1
        chosen[engine] += 1
    assert set(chosen.values()) == {2}


def broken(*_: object) -> float:
    raise ZeroDivisionError


@pytest.mark.parametrize("load_score", [broken, lambda *_: None, lambda *_: "1"])
def test_a_score_that_breaks_fails_the_request_alone(load_score) -> None:
    link = MemoryLink("a", "b", ready=False, load_score=load_score)
    params = SamplingParams(max_tokens=1)
    request = EngineCoreRequest("r", [1], sampling_params=params)
    later = link.core.requests.add(request, object(), link.now, retry=True)
    for name in ("a", "b"):
        link.answer(link.pod(name))
    (ended,) = [e for e in link.wait(1) if isinstance(e, RequestEnded)]
    assert ended.record is later
    assert isinstance(ended.error, RequestRejectedError)
    with pytest.raises(RequestRejectedError, match="load_score: got"):
        link.core.requests.add(request, object(), link.now)
    assert link.core.unfinished == 0


def test_clients_start_at_different_engines() -> None:
    starts = [Balancer(index, 4).choose(dict.fromkeys(range(4), 0)) for index in range(4)]
    assert starts == [0, 1, 2, 3]


@pytest.mark.parametrize("stale", [0, 1])
def test_fault_48027_a_stale_report_does_not_hide_own_requests(stale: int) -> None:
    """A snapshot that says one request runs on engine 1, again and again."""
    balancer: Balancer[int] = Balancer()
    in_flight = {0: 0, 1: 0}
    for _ in range(100):
        for engine in (0, 1):
            balancer.report(engine, EngineLoad(0, stale * engine, 0.0))
        in_flight[balancer.choose(in_flight)] += 1
    assert abs(in_flight[0] - in_flight[1]) <= 1


def test_the_less_loaded_engine_wins_and_full_memory_repels() -> None:
    balancer: Balancer[int] = Balancer()
    balancer.report(0, EngineLoad(0, 9, 0.1))
    balancer.report(1, EngineLoad(0, 3, 0.1))
    assert balancer.choose({0: 0, 1: 0}) == 1
    balancer.report(0, EngineLoad(2, 4, 1.0))
    balancer.report(1, EngineLoad(2, 5, 0.2))
    assert balancer.choose({0: 0, 1: 0}) == 1
    balancer.forget(1)
    assert balancer.choose({0: 0, 1: 0}) == 1


def test_choices_count_until_the_next_report() -> None:
    balancer: Balancer[int] = Balancer()
    balancer.report(0, EngineLoad(0, 0, 0.0))
    balancer.report(1, EngineLoad(0, 2, 0.0))
    assert [balancer.choose({0: 0, 1: 0}) for _ in range(2)] == [0, 0]
    assert balancer.choose({0: 0, 1: 0}) in (0, 1)
    balancer.report(0, EngineLoad(0, 0, 0.0))
    assert balancer.choose({0: 0, 1: 0}) == 0


def test_finished_requests_leave_nothing_behind_although_no_report_comes() -> None:
    balancer: Balancer[int] = Balancer()
    balancer.report(0, EngineLoad(0, 20, 0.0))
    balancer.report(1, EngineLoad(0, 0, 0.0))
    assert {balancer.choose({0: 0, 1: 0}) for _ in range(100)} == {1}


def test_unreported_requests_count_under_memory_pressure() -> None:
    balancer: Balancer[int] = Balancer()
    balancer.report(0, EngineLoad(0, 3, 0.9))
    balancer.report(1, EngineLoad(0, 4, 0.1))
    in_flight = {0: 0, 1: 0}
    chosen = []
    for _ in range(3):
        chosen.append(balancer.choose(in_flight))
        in_flight[chosen[-1]] += 1
    assert chosen == [0, 1, 1]


@pytest.mark.parametrize(("key", "engine"), [("q", 2), ("query-1", 1), ("\u00fc", 1)])
def test_a_late_interaction_query_has_one_keeper(key: str, engine: int) -> None:
    assert keeper_of(key, [0, 1, 2]) == engine


def test_documents_follow_their_query_whatever_the_load() -> None:
    link = MemoryLink("a", "b", "c")
    for number, mode in enumerate(("cache_query", *["score_doc"] * 6)):
        late = LateInteraction(mode, "query-1")
        pooling = PoolingParams(task="embed", late_interaction_params=late)
        link.core.requests.add(
            EngineCoreRequest(str(number), [1], pooling_params=pooling), object(), link.now
        )
        link.run()
    assert [len(link.pod(name).adds) for name in "abc"] == [0, 7, 0]


def test_fault_40795_the_policy_is_the_callers() -> None:
    def by_memory(in_flight: int, load: EngineLoad, client_count: int) -> float:
        assert (in_flight, client_count) == (0, 1)
        return load.kv_usage

    balancer: Balancer[str] = Balancer(load_score=by_memory)
    balancer.report("full", EngineLoad(0, 0, 0.9))
    balancer.report("free", EngineLoad(50, 50, 0.1))
    assert [balancer.choose({"full": 0, "free": 0}) for _ in range(3)] == ["free"] * 3


def test_fault_40795_a_clients_requests_follow_its_policy() -> None:
    link = MemoryLink("a", "b", load_score=lambda in_flight, *_: -in_flight)
    for number in range(5):
        request = EngineCoreRequest(str(number), [1], sampling_params=SamplingParams())
        link.core.requests.add(request, object(), link.now)
    link.run()
    assert sorted(len(link.pod(name).adds) for name in "ab") == [0, 5]
