"""What the core makes of engines that dial in: no socket, a clock the test moves."""

import msgspec
import pytest

from enginecore_client import (
    ClientClosedError,
    EngineCoreRequest,
    EngineDeadError,
    EngineDrainingError,
    EngineNotReadyError,
    FinishReason,
    ProtocolMismatchError,
    RequestRejectedError,
    SamplingParams,
)
from enginecore_client._core.events import CallEnded, Delivered, EngineDown, EngineUp
from enginecore_client._core.states import FINAL, NATIVE_TRANSITIONS, Channel, Move, State
from enginecore_wire.dialects import dialect_of
from enginecore_wire.outputs import ENGINE_CORE_DEAD
from enginecore_wire.requests import RequestType
from support.native_link import SINK, NativeLink, add, ended, of, two


def test_every_native_state_ends_for_good() -> None:
    for state, row in NATIVE_TRANSITIONS.items():
        if state in FINAL:
            assert row == {}
        else:
            assert row[Move.GONE] is State.LOST
            assert row[Move.DIED] is State.DEAD


def test_ready_payload_makes_an_engine_ready() -> None:
    link = NativeLink(3, client_index=5, vocab_size=500, model_name="m")
    assert link.core.missing(link.now + 7) == [
        "rank 3 at tcp://*:1: has not dialled in and said READY for 7 s"
    ]
    with pytest.raises(EngineNotReadyError, match="rank 3"):
        add(link)
    (up,) = of(EngineUp, link.announce(3, max_model_len=50, num_gpu_blocks=9))
    assert (up.engine, up.ready.slot, up.ready.vocab_size) == (3, 5, 500)
    assert up.ready.engine["num_gpu_blocks"] == 9
    assert up.ready.runtime_version == "0.32.0"
    record = add(link)
    assert record.engine == 3
    assert link.engines[3].adds[0].client_index == 5
    link.token(3, 0, 7)
    (event,) = of(Delivered, link.token(3, 0, 8, reason=FinishReason.LENGTH))
    assert event.engine == 3
    assert link.core.unfinished == 0


def test_request_is_bounded_by_what_is_known() -> None:
    link = NativeLink(0, vocab_size=10)
    link.announce(0, max_model_len=4)
    with pytest.raises(RequestRejectedError, match=r"prompt_token_ids"):
        add(link, prompt=[1, 10])
    with pytest.raises(RequestRejectedError, match="prompt"):
        add(link, prompt=[1, 2, 3, 4, 5])
    assert link.engines[0].adds == []


def test_token_ids_are_unbounded_when_nobody_knows_the_vocabulary() -> None:
    link = NativeLink(0)
    link.announce(0)
    add(link, prompt=[10**6])
    assert link.engines[0].adds[0].prompt_token_ids == [10**6]


def test_empty_payload_is_an_engine_that_says_nothing_about_itself() -> None:
    link = NativeLink(0, engine_version="0.19.1")
    (up,) = of(EngineUp, link.announce(0, payload=b""))
    assert up.ready.engine == {}
    assert up.ready.runtime_version == "0.19.1"
    sent = []
    link.engines[0].keep = sent.append
    add(link)
    assert len(sent) == 1


UNREADABLE = [b"\x92\x01\x02", b"READY", b"\x81", b"\x81\xa1a" + 3000 * b"\x91" + b"\xc0"]


@pytest.mark.parametrize("payload", UNREADABLE)
def test_unreadable_payload_harms_nothing_else(payload: bytes) -> None:
    link = two()
    link.announce(1, payload=payload)
    assert link.core.unreadable == 1
    (line,) = link.core.missing(link.now)
    assert "rank 1" in line
    assert "READY payload cannot be read" in line
    add(link, rank=0)
    link.announce(1)
    assert link.core.all_ready()


@pytest.mark.parametrize("length", [0, -1, "100", 2.5, True])
def test_payload_no_client_can_work_with(length) -> None:
    link = NativeLink(0)
    link.announce(0, max_model_len=length)
    assert not link.core.all_ready()
    refusal = link.core.refusal()
    assert refusal is not None
    assert "max_model_len" in refusal.message
    link.announce(0)
    assert link.core.all_ready()
    assert link.core.refusal() is None


LOSSES = [
    ("down", lambda link: link.down(1), "its connection to the input socket closed"),
    ("dead", lambda link: link.raw(1, ENGINE_CORE_DEAD), "the engine process died"),
    (
        "exit",
        lambda link: link.exit(1, "ended by signal 9") + link.wait(0.3),
        "process ended by signal 9",
    ),
    (
        "input alone",
        lambda link: link.down(1, Channel.INPUT) + link.wait(0.3),
        "its connection to the input socket closed",
    ),
    (
        "output alone",
        lambda link: link.down(1, Channel.OUTPUT),
        "its connection to the output socket closed",
    ),
    ("taken over", lambda link: link.announce(1), "another process of its rank took its place"),
]


@pytest.mark.parametrize(("lose", "text"), [row[1:] for row in LOSSES], ids=[r[0] for r in LOSSES])
def test_loss_ends_what_was_on_that_engine_and_nothing_else(lose, text: str) -> None:
    link = two()
    add(link, "zero", rank=0)
    add(link, "one", rank=1)
    link.token(1, 0, 5)
    future = object()
    call = link.core.calls.send(link.links[1], "is_sleeping", [], future, None)
    events = lose(link)
    assert ended(events) == [("one", EngineDeadError)]
    (down,) = of(EngineDown, events)
    assert down.engine == 1
    assert text in str(down.error)
    (lost,) = of(CallEnded, events)
    assert lost.record is call
    assert isinstance(lost.error, EngineDeadError)
    assert lost.error.engine == 1
    of_zero = link.token(0, 0, 5, reason=FinishReason.LENGTH)
    assert len(of(Delivered, of_zero)) == 1
    assert link.core.unfinished == 0


def test_next_process_takes_over() -> None:
    link = two()
    link.exit(1, "ended with status 1")
    link.wait(0.3)
    with pytest.raises(EngineNotReadyError, match=r"rank 1 .*process ended with status 1"):
        link.core.calls.targets(1, link.now)
    assert [r.engine for r in (add(link, "a"), add(link, "b"))] == [0, 0]
    (up,) = of(EngineUp, link.announce(1, max_model_len=33))
    assert up.ready.engine["max_model_len"] == 33
    assert link.core.all_ready()
    assert add(link, "c", rank=1).engine == 1
    assert [request.external_req_id for request in link.engines[1].adds] == ["c"]


def test_request_without_a_token_is_sent_again() -> None:
    link = NativeLink(0)
    link.announce(0)
    add(link, "r", retry=True)
    assert ended(link.down(0)) == []
    link.announce(0)
    link.wait(0.2)
    assert [request.external_req_id for request in link.engines[0].adds] == ["r"]


def test_engine_that_comes_back_is_asked_and_told_to_forget() -> None:
    link = two()
    add(link, "old", rank=1)
    old = link.engines[1].adds[0].request_id
    link.down(1)
    link.wait(1.0)
    assert link.engines[1].probes == 0
    link.engines[1].connected = True
    link.wait(1.0)
    assert link.engines[1].aborts == [old]
    assert link.engines[1].probes == 1
    assert not link.core.all_ready()
    events = link.token(1, 0, 7)
    assert of(Delivered, events) == []
    (up,) = of(EngineUp, link.reply(1))
    assert up.ready.engine["max_model_len"] == 100
    assert link.core.all_ready()
    add(link, "new", rank=1)
    assert len(link.engines[1].adds) == 2
    link.wait(1.0)
    assert link.engines[1].probes == 1


def test_engine_is_asked_again_when_it_breaks_off_again() -> None:
    link = two()
    add(link, "old", rank=1)
    old = link.engines[1].adds[0].request_id
    for _ in range(2):
        link.down(1)
        link.engines[1].connected = True
        link.wait(0.2)
    assert link.engines[1].aborts == [old, old]
    assert link.engines[1].probes == 2


@pytest.mark.parametrize(
    "cut", [lambda link: link.down(0, Channel.INPUT), lambda link: link.exit(0, "ended")]
)
def test_what_an_engine_said_before_its_end_is_read(cut) -> None:
    link = NativeLink(0)
    link.announce(0)
    record = add(link)
    cut(link)
    with pytest.raises(EngineDrainingError):
        add(link, "late")
    events = link.token(0, 0, 7, reason=FinishReason.ABORT)
    assert of(Delivered, events)[0].records[0] is record
    events = link.wait(0.3)
    assert ended(events) == []
    assert len(of(EngineDown, events)) == 1


def test_last_word_counts_although_the_input_closed_first() -> None:
    link = NativeLink(0)
    link.announce(0)
    link.down(0, Channel.INPUT)
    (down,) = of(EngineDown, link.raw(0, ENGINE_CORE_DEAD))
    assert "died" in str(down.error)


def test_process_that_ended_is_not_waited_for() -> None:
    link = two()
    link.down(1)
    link.exit(1, "ended by signal 9")
    link.engines[1].connected = True
    link.wait(1.0)
    assert link.engines[1].probes == 0


def test_deeply_nested_loads_end_nothing() -> None:
    link = two()
    link.core.loads.receive([b"\x93\xc0\x00" + 3000 * b"\x91" + b"\xc2"], link.now)
    assert link.core.unreadable == 1
    add(link)


VERSIONS = [
    ("newest", "", "0.32.0", "C"),
    ("newer than known", "", "0.40.1", "C"),
    ("not a vLLM", "", "enginecore-torch-0.1.0", "C"),
    ("says nothing, declared", "0.18.2", "", "B"),
    ("says nothing, nothing declared", "", "", "C"),
    ("old and declared so", "v0.12.0", "0.12.0", "A"),
    ("another build of the same layout", "0.22.0", "0.32.0+cpu", "C"),
]


@pytest.mark.parametrize(
    ("declared", "reported", "layout"), [r[1:] for r in VERSIONS], ids=[r[0] for r in VERSIONS]
)
def test_positions_follow_the_version(declared: str, reported: str, layout: str) -> None:
    link = NativeLink(0, engine_version=declared)
    (up,) = of(EngineUp, link.announce(0, vllm_version=reported))
    assert up.ready.layout == layout
    connection = link.core._fleet.holder(0)
    assert connection is not None
    assert connection.dialect.layout == layout
    link.down(0)
    link.engines[0].connected = True
    link.wait(0.2)
    (again,) = of(EngineUp, link.reply(0))
    assert again.ready.layout == layout


@pytest.mark.parametrize(
    ("declared", "reported"), [("0.12.0", "0.32.0"), ("", "0.8.5"), ("0.9.0", ""), ("today", "")]
)
def test_engines_of_another_layout_end_the_wait(declared: str, reported: str) -> None:
    link = NativeLink(0, engine_version=declared)
    link.announce(0, vllm_version=reported)
    refusal = link.core.refusal()
    assert refusal is not None
    assert (reported or declared) in refusal.message
    assert not link.core.all_ready()


def test_requests_are_written_for_the_engines_release() -> None:
    link = NativeLink(0, engine_version="0.18.0")
    link.announce(0, vllm_version="")
    sent = []
    link.engines[0].keep = sent.append
    add(link, prompt=[5, 6])
    body = msgspec.msgpack.decode(sent[0][1])
    assert body[dialect_of("0.18.0").client_index] == 0
    assert len(body) == len(dialect_of("0.18.0").request)
    request = EngineCoreRequest("r", [1], sampling_params=SamplingParams(), session_id="s")
    with pytest.raises(RequestRejectedError, match=r"session_id: .* vLLM 0\.18") as caught:
        link.core.requests.add(request, SINK, link.now)
    assert caught.value.field == "session_id"


def test_engines_that_run_already_are_used_once_they_answer() -> None:
    link = NativeLink(0, running_facts={"max_model_len": 44, "vllm_version": "0.32.0"})
    assert not link.core.all_ready()
    link.engines[0].connected = True
    link.wait(0.2)
    assert (link.engines[0].probes, link.engines[0].aborts) == (1, [])
    (up,) = of(EngineUp, link.reply(0))
    assert up.ready.engine["max_model_len"] == 44
    assert link.core.facts() == {0: up.ready.engine}
    add(link)
    (up,) = of(EngineUp, link.announce(0, max_model_len=55))
    assert link.core.facts()[0]["max_model_len"] == 55


def test_engines_that_run_already_have_to_speak_the_layout() -> None:
    with pytest.raises(ProtocolMismatchError, match="declared was"):
        NativeLink(0, running_facts={"vllm_version": "0.32.0"}, engine_version="0.12.0")


def test_an_engine_is_told_to_forget_what_it_has_when_the_client_leaves() -> None:
    link = two()
    left = [add(link, name, rank=0).internal_id for name in ("a", "b")]
    link.core.close(ClientClosedError("closed"), link.now)
    link.run()
    closed = {close.link: list(close.last_frames) for close in link.closed}
    abort = [RequestType.ABORT, msgspec.msgpack.encode(left)]
    assert closed == {link.links[0]: abort, link.links[1]: []}


def test_an_engine_that_is_away_is_told_nothing_when_the_client_leaves() -> None:
    link = two()
    add(link, rank=0)
    link.down(0, Channel.INPUT)
    link.core.close(ClientClosedError("closed"), link.now)
    link.run()
    assert [list(close.last_frames) for close in link.closed] == [[], []]
