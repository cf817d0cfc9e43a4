"""Engines of older vLLM releases behind the engine server: requests reach every field's own
place, and so do outputs."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from enginecore_client import RequestRejectedError
from enginecore_wire.contract import RuntimeConfig
from enginecore_wire.outputs import FinishReason
from enginecore_wire.requests import EngineCoreRequest, SamplingParams
from support.faces import Face
from support.pod import Pod, client_addresses, stub_config

ENGINE = Path(__file__).resolve().parents[2] / "support" / "older_engine.py"
EOS = 17

StartPod = Callable[..., Pod]


@pytest.fixture
def start_pod() -> Iterator[StartPod]:
    """Return a function that starts a pod with an engine of a release; it does not wait."""
    with ExitStack() as stack:

        def start(release: str, declared: str = "") -> Pod:
            command = [sys.executable, str(ENGINE), "$(ENGINECORE_HANDSHAKE_PORT)", release]
            runtime = RuntimeConfig(type="custom", command=command, version=declared)
            config = msgspec.structs.replace(stub_config(), runtime=runtime)
            return stack.enter_context(Pod(config))

        yield start


def request(name: str, **fields: object) -> EngineCoreRequest:
    params = SamplingParams(max_tokens=4, eos_token_id=EOS)
    given = {"sampling_params": params, "cache_salt": "salt", "priority": 9} | fields
    return EngineCoreRequest(name, [1, 2, 3], trace_headers={"t": name}, **given)


@pytest.mark.parametrize(
    ("release", "declared"),
    [
        ("0.20.2", "0.20.0"),
        ("0.21.0", "0.21.0"),
        ("0.22.1", "v0.22.1-cu129"),
        ("0.24.0", ""),
        ("0.25.1", "0.23.0"),
        ("0.28.0", ""),
        ("0.31.0", ""),
        ("0.32.0", "0.32.0"),
    ],
)
def test_request_and_outputs_of_a_release(
    start_pod: StartPod, make_face: Callable[..., Face], release: str, declared: str
) -> None:
    face = make_face(client_addresses([start_pod(release, declared).wait_ready()]))
    for name in ("first", "second"):
        face.add(request(name))
        outputs = []
        while not outputs or outputs[-1].finish_reason is None:
            outputs += face.get_output().outputs
        assert [output.new_token_ids for output in outputs] == [[9], [EOS]]
        assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == (FinishReason.STOP, release)
        for output in outputs:
            assert output.trace_headers == {"t": name}
            assert output.prefill_stats.num_cached_tokens == 5
            assert output.num_nans_in_logits == 3


def test_field_the_engine_has_no_place_for_is_refused_before_it_gets_there(
    start_pod: StartPod, make_face: Callable[..., Face]
) -> None:
    face = make_face(client_addresses([start_pod("0.24.0").wait_ready()]))
    with pytest.raises(RequestRejectedError, match=r"session_id: the engine is vLLM 0\.24\.0"):
        face.add(request("r", session_id="s"))
    face.add(request("next"))
    assert face.get_output().outputs[0].new_token_ids == [9]


@pytest.mark.parametrize(
    ("release", "declared", "says"),
    [
        ("0.21.0", "", "older than vLLM 0.23; name its release in runtime.version"),
        ("0.24.0", "0.20.0", "reports vLLM 0.24.0 (layout C), declared was 0.20.0 (layout B)"),
    ],
)
def test_engine_whose_positions_are_in_doubt_is_not_used(
    start_pod: StartPod, release: str, declared: str, says: str
) -> None:
    pod = start_pod(release, declared)
    assert pod.process.wait(20) == 1
    assert says in "\n".join(pod.log)
