"""What `generate` makes of n > 1, stop strings and output kinds, sync and async."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from enginecore_client import (
    EngineCoreOutput,
    EngineCoreRequest,
    EngineDeadError,
    FinishReason,
    OutputKind,
    OverloadedError,
    RequestRejectedError,
    RequestTimeoutError,
)
from enginecore_wire.control import Limits
from support.eventually import eventually
from support.faces import FACES, AsyncFace, SyncFace, params
from support.letters import Letters
from support.pod import Pod, client_addresses
from support.protocol_peer import ProtocolPeer

TEXT = "to be or not to be, that is the question"
PROMPT = list(TEXT.encode())
LETTERS = Letters()

Open = Callable[..., SyncFace | AsyncFace]


@pytest.fixture(params=FACES)
def open_face(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Connect clients of either kind; they close with the test."""
    faces: list[SyncFace | AsyncFace] = []

    def connect(addresses: dict[str, Any], **options: Any) -> SyncFace | AsyncFace:
        faces.append(FACES[request.param](addresses, **options))
        return faces[-1]

    yield connect
    for face in faces:
        face.close()


def random_params(max_tokens: int, **more: Any) -> Any:
    """Return sampling that may have several sequences."""
    return params(max_tokens, **({"temperature": 1.0} | more))


def by_index(outputs: list[EngineCoreOutput]) -> dict[int, list[EngineCoreOutput]]:
    found: dict[int, list[EngineCoreOutput]] = {}
    for output in outputs:
        found.setdefault(output.index, []).append(output)
    return found


def tokens(outputs: list[EngineCoreOutput]) -> list[int]:
    return [token for output in outputs for token in output.new_token_ids]


def repeated(count: int) -> list[int]:
    return [PROMPT[i % len(PROMPT)] for i in range(count)]


def unfinished(face: SyncFace | AsyncFace) -> int:
    return face.client._driver.core.unfinished


def forgotten(face: SyncFace | AsyncFace, *pods: Pod) -> None:
    """Return once neither the client nor an engine has a request left."""
    eventually(lambda: unfinished(face) == 0, "the client forgot")
    for each in pods:
        eventually(lambda each=each: each.status().in_flight == 0, "the engine forgot")


@pytest.mark.parametrize("kind", OutputKind, ids=lambda kind: kind.name)
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("tokenizer", [None, LETTERS], ids=["ids", "text"])
def test_output_kinds(pod: Pod, open_face: Open, kind: OutputKind, n: int, tokenizer: Any) -> None:
    face = open_face(client_addresses([pod]), tokenizer=tokenizer)
    outputs = list(face.generate(PROMPT, random_params(12, n=n, output_kind=kind)))
    whole, text = repeated(12), TEXT[:12] if tokenizer else ""
    for index, each in by_index(outputs).items():
        assert 0 <= index < n
        assert [output.finish_reason for output in each[:-1]] == [None] * (len(each) - 1)
        assert each[-1].finish_reason is FinishReason.LENGTH
        if kind is OutputKind.DELTA:
            assert (tokens(each), "".join(output.text for output in each)) == (whole, text)
        else:
            assert (each[-1].new_token_ids, each[-1].text) == (whole, text)
            lengths = [len(output.new_token_ids) for output in each]
            assert lengths == sorted(lengths)
        assert len(each) == (1 if kind is OutputKind.FINAL_ONLY else 12)
    assert len(by_index(outputs)) == n
    forgotten(face, pod)


def test_sequences_have_one_name_and_end_together_by_it(pod: Pod, open_face: Open) -> None:
    face = open_face(client_addresses([pod]))
    stream = face.generate(PROMPT, random_params(2000, n=3), request_id="mine")
    seen = [next(stream)]
    while len(by_index(seen)) < 3:
        seen.append(next(stream))
    assert {output.request_id for output in seen} == {"mine"}
    face.abort(["mine"])
    rest = list(stream)
    ends = [output for output in rest if output.finish_reason is not None]
    assert {output.index for output in ends} == {0, 1, 2}
    assert {output.finish_reason for output in ends} == {FinishReason.ABORT}
    assert rest[-1] is ends[-1]
    forgotten(face, pod)


def test_leaving_the_stream_aborts_every_sequence(pod: Pod, open_face: Open) -> None:
    face = open_face(client_addresses([pod]))
    stream = face.generate(PROMPT, random_params(2000, n=5))
    next(stream)
    assert unfinished(face) == 5
    stream.close()  # type: ignore[attr-defined]
    forgotten(face, pod)


def test_the_deadline_is_that_of_all_sequences(pod: Pod, open_face: Open) -> None:
    face = open_face(client_addresses([pod]))
    stream = face.generate(PROMPT, random_params(2000, n=3), deadline=0.3)
    with pytest.raises(RequestTimeoutError):
        list(stream)
    forgotten(face, pod)


def test_a_sequence_that_fails_ends_the_others(start_pod: Any, open_face: Open) -> None:
    slow = ("--tokens", "2000", "--token-seconds", "0.01")
    pods = [start_pod(*slow, "--rank", str(rank), rank=rank).wait_ready() for rank in (0, 1)]
    face = open_face(client_addresses(pods))
    stream = face.generate(PROMPT, random_params(2000, n=2))
    seen = [next(stream)]
    while len(by_index(seen)) < 2:
        seen.append(next(stream))
    assert [pod.status().in_flight for pod in pods] == [1, 1]
    pods[0].kill()
    with pytest.raises(EngineDeadError) as caught:
        list(stream)
    assert caught.value.engine == 0
    with pytest.raises(StopIteration):
        next(stream)
    forgotten(face, pods[1])


def test_all_sequences_are_sent_or_none(peer: ProtocolPeer, open_face: Open) -> None:
    assert peer.ready is not None
    peer.become_ready(type(peer.ready)(engine=peer.ready.engine, limits=Limits(in_flight=2)))
    face = open_face(peer.addresses)
    with pytest.raises(OverloadedError, match="limit of 2"):
        list(face.generate(PROMPT, random_params(5, n=3)))
    eventually(lambda: unfinished(face) == 0)
    assert tokens(list(face.generate(PROMPT, params(5)))) == repeated(5)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("kind", OutputKind, ids=lambda kind: kind.name)
def test_a_stop_string_ends_text_and_request(
    pod: Pod, open_face: Open, kind: OutputKind, include: bool
) -> None:
    registry = CollectorRegistry()
    face = open_face(client_addresses([pod]), tokenizer=LETTERS, registry=registry)
    sampling = params(2000, stop=["x", "not to", "that"], output_kind=kind,
                      include_stop_str_in_output=include)  # fmt: skip
    outputs = list(face.generate(PROMPT, sampling))
    text = "".join(output.text for output in outputs)
    if kind is not OutputKind.DELTA:
        text = outputs[-1].text
    assert text == ("to be or not to" if include else "to be or ")
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == (FinishReason.STOP, "not to")
    forgotten(face, pod)
    labels = {"model_name": "stub", "engine": "0", "reason": "stop"}
    assert registry.get_sample_value("enginecore_client_requests_total", labels) == 1


def test_each_sequence_stops_by_itself(pod: Pod, open_face: Open) -> None:
    face = open_face(client_addresses([pod]), tokenizer=LETTERS)
    outputs = list(face.generate(PROMPT, random_params(2000, n=3, stop="be,")))
    for each in by_index(outputs).values():
        assert "".join(output.text for output in each) == "to be or not to "
        assert each[-1].stop_reason == "be,"
    forgotten(face, pod)


def test_a_stream_nobody_reads_stops_too(pod: Pod, open_face: Open) -> None:
    face = open_face(client_addresses([pod]), tokenizer=LETTERS)
    stream = face.generate(PROMPT, params(2000, stop="question"))
    forgotten(face, pod)
    assert "".join(output.text for output in stream) == TEXT.removesuffix("question")


def test_what_may_become_a_stop_string_is_never_shown(pod: Pod, open_face: Open) -> None:
    face = open_face(client_addresses([pod]), tokenizer=LETTERS)
    shown = [output.text for output in face.generate(PROMPT, params(9, stop=["to be or x"]))]
    assert shown == [""] * 8 + ["to be or "]
    shown = [output.text for output in face.generate(PROMPT, params(12, stop=["e or nx"]))]
    assert shown == ["t", "o", " ", "b", "", "", "", "", "", "", "e or no", "t"]


def test_without_a_tokenizer_strings_are_refused_with_the_remedy(pod: Pod, open_face: Open) -> None:
    face = open_face(client_addresses([pod]))
    for field in ("stop", "bad_words"):
        with pytest.raises(RequestRejectedError, match=r"enginecore_client\.text\.Token") as caught:
            list(face.generate(PROMPT, params(5, **{field: ["x"]})))
        assert caught.value.field == f"sampling_params.{field}"
    assert unfinished(face) == 0


def test_get_output_leaves_strings_to_its_caller(pod: Pod, open_face: Open) -> None:
    face = open_face(client_addresses([pod]), tokenizer=LETTERS)
    sampling = params(12, stop=["be"], output_kind=OutputKind.FINAL_ONLY)
    face.add(EngineCoreRequest("a", PROMPT, sampling_params=sampling))
    seen: list[EngineCoreOutput] = []
    while not seen or seen[-1].finish_reason is None:
        seen += face.get_output().outputs
    assert tokens(seen) == repeated(12)


def test_a_whole_request_as_prompt(pod: Pod, open_face: Open) -> None:
    face = open_face(client_addresses([pod]))
    request = EngineCoreRequest("mine", PROMPT, sampling_params=params(4), priority=3)
    outputs = list(face.generate(request))
    assert (tokens(outputs), outputs[0].request_id) == (repeated(4), "mine")
    with pytest.raises(RequestRejectedError, match=r"sampling_params: got .* set its sampling_par"):
        list(face.generate(request, params(1)))
    with pytest.raises(
        RequestRejectedError, match=r"request_id: got 'other' .* set its request_id"
    ):
        list(face.generate(request, request_id="other"))


def test_a_tokenizer_that_breaks_ends_its_own_stream(pod: Pod, open_face: Open) -> None:
    letters = Letters()
    face = open_face(client_addresses([pod]), tokenizer=letters)
    stream = face.generate(PROMPT, params(2000))
    next(stream)
    letters.broken = True
    with pytest.raises(KeyError):
        list(stream)
    letters.broken = False
    forgotten(face, pod)
    assert tokens(list(face.generate(PROMPT, params(3)))) == repeated(3)


def test_many_threads_with_several_sequences_each(pod: Pod) -> None:
    face = SyncFace(client_addresses([pod]))
    results: list[list[int]] = []

    def work() -> None:
        for _ in range(5):
            outputs = list(face.generate(PROMPT, random_params(8, n=4)))
            results.extend(map(tokens, by_index(outputs).values()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    face.close()
    assert results == [repeated(8)] * 80


def test_token_ids_may_be_left_to_the_server(start_pod: Any, open_face: Open) -> None:
    """A client that does not check them hears of it all the same, and goes on."""
    face = open_face(client_addresses([start_pod().wait_ready()]), check_prompts=False)
    assert len(list(face.generate(PROMPT, params(3)))) == 3
    with pytest.raises(RequestRejectedError) as refused:
        list(face.generate([*PROMPT, 10**6], params(3)))
    assert refused.value.field == f"prompt_token_ids[{len(PROMPT)}]"
    assert len(list(face.generate(PROMPT, params(3)))) == 3
