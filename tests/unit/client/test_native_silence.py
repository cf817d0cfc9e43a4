"""Engines that dial in and say nothing: asked, given up, or forgiven; a clock the test moves."""

from enginecore_client._core.events import EngineDown
from support.native_link import PROBE_ID, NativeLink, add, of


def test_silent_engine_is_asked_then_given_up() -> None:
    link = NativeLink(0, probe_seconds=4.0)
    link.announce(0)
    add(link)
    link.wait(1.9)
    assert link.engines[0].probes == 0
    link.wait(0.4)
    assert link.engines[0].probes == 1
    events = link.wait(1.4)
    assert of(EngineDown, events) == []
    (down,) = of(EngineDown, link.wait(0.6))
    assert "was silent for 4" in str(down.error)


def test_engine_that_answers_is_kept() -> None:
    link = NativeLink(0, probe_seconds=4.0)
    link.announce(0)
    for round_ in range(1, 4):
        assert of(EngineDown, link.wait(2.3)) == []
        assert link.engines[0].probes == round_
        link.reply(0)
    add(link)
    for _ in range(4):
        link.wait(1.5)
        link.token(0, 0, 1)
    assert link.engines[0].probes == 3


def test_engine_is_not_asked_while_it_runs_a_call() -> None:
    link = NativeLink(0, probe_seconds=1.0)
    link.announce(0)
    link.core.calls.send(link.links[0], "sleep", [1, "abort"], object(), None)
    link.run()
    assert of(EngineDown, link.wait(5.0)) == []
    link.reply(0)
    assert link.engines[0].probes == 0
    link.wait(0.7)
    assert link.engines[0].probes == 1


def test_silence_is_forgiven_to_a_client_that_did_not_run() -> None:
    link = NativeLink(0, probe_seconds=1.0)
    link.announce(0)
    link.now += 60
    link.core.tick(link.now)
    assert of(EngineDown, link.run()) == []


def test_silence_is_no_matter_without_a_limit() -> None:
    link = NativeLink(0)
    link.announce(0)
    assert of(EngineDown, link.wait(100, step=0.9)) == []
    assert link.engines[0].calls == []


def test_probe_is_a_call_every_engine_knows() -> None:
    link = NativeLink(0, client_index=2, probe_seconds=1.0)
    link.announce(0)
    link.wait(0.6)
    (call,) = link.engines[0].calls
    assert (call.client_index, call.call_id, call.method, call.args) == (
        2, PROBE_ID, "is_sleeping", [],
    )  # fmt: skip
