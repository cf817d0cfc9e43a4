"""What a pod tells of itself: one request through its log, its metrics, its status page."""

import json
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from enginecore_client import RequestRejectedError, SyncMPClient
from enginecore_wire.contract import LOG_FORMAT_ENV, LOG_LEVEL_ENV
from enginecore_wire.outputs import EngineCoreOutputs
from enginecore_wire.requests import SamplingParams
from support.eventually import eventually
from support.pod import LOOPBACK, Pod, client_addresses, stub_config, torch_config
from support.pod_pages import sample
from support.raw_client import RawClient, request
from support.tiny_llama import write_tiny_llama

MakePod = Callable[..., Pod]
Connect = Callable[..., RawClient]

ENDLESS = ("--tokens", "100000", "--token-seconds", "0.01", "--max-model-len", "200000")


def of_request(pod: Pod, name: str) -> list[dict[str, Any]]:
    """Return the log's lines about a request of this name, its engine's name for it included."""
    lines = [json.loads(line) for line in list(pod.log) if line.startswith('{"time"')]
    return [
        line
        for line in lines
        if (line.get("request_id") or "").startswith(f"{name}-") or line.get("request_id") == name
    ]


def test_a_request_can_be_followed_by_its_id() -> None:
    config = stub_config(*ENDLESS, name="engine-0")
    log = {LOG_LEVEL_ENV: "debug", LOG_FORMAT_ENV: "json"}
    with Pod(config, **log) as pod:  # type: ignore[arg-type]
        pod.wait_ready()
        with SyncMPClient(client_addresses([pod]), client_name="shop") as client:
            list(client.generate([1, 2], SamplingParams(max_tokens=5), request_id="order-17"))
            with closing(client.generate([3], SamplingParams(max_tokens=900), "order-18")) as left:
                next(left)
            eventually(lambda: len(of_request(pod, "order-18")) == 3)
        with RawClient(pod.input_port, pod.output_port, name="rude") as raw:
            raw.ready()
            raw.add(request("order-19", prompt_token_ids=[5000]))
            eventually(lambda: len(of_request(pod, "order-19")) == 1)
    found = {name: of_request(pod, name) for name in ("order-17", "order-18", "order-19")}
    told = {name: [line["message"] for line in lines] for name, lines in found.items()}
    assert told == {
        "order-17": ["request admitted", "first output", "request finished"],
        "order-18": ["request admitted", "first output", "request aborted"],
        "order-19": ["message refused"],
    }
    admitted, _, finished = found["order-17"]
    assert (admitted["client"], admitted["slot"], admitted["prompt_tokens"]) == ("shop", 1, 2)
    assert (finished["reason"], admitted["level"]) == ("length", "debug")
    assert 0.0 < finished["seconds"] < 10.0
    (refused,) = found["order-19"]
    assert (refused["client"], refused["code"]) == ("rude", "invalid_request")
    assert refused["field"] == "prompt_token_ids[0]"


def test_without_debug_the_log_is_silent_about_requests(
    make_pod: MakePod, connect: Connect
) -> None:
    pod = make_pod()
    client = connect(pod)
    client.ready()
    client.add(request("quiet"))
    client.tokens("quiet")
    assert "quiet" not in "\n".join(pod.log)


def test_every_relayed_message_has_its_latency(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod("--tokens", "500", epoch=4)
    client = connect(pod)
    client.ready()
    client.add(request("timed", max_tokens=500))
    client.tokens("timed")
    name = "enginecore_server_relay_latency_seconds"
    assert sample(pod, f"{name}_count") == sample(pod, "enginecore_server_outputs_relayed_total")
    assert sample(pod, f"{name}_count") == 500.0
    assert 0.0 < sample(pod, f"{name}_sum") / 500 < 0.1
    assert sample(pod, "enginecore_server_epoch") == 4.0


def test_what_waits_for_a_client_is_told(make_pod: MakePod, connect: Connect) -> None:
    pod = make_pod("--payload-bytes", "20000", *ENDLESS[:2], *ENDLESS[4:])
    slow = connect(pod, receive_hwm=10)
    slow.ready()
    assert sample(pod, "enginecore_server_queued_bytes") == 0.0
    slow.add(request("unread", max_tokens=100_000))

    def queued() -> bool:
        status = pod.status()
        return bool(status.sessions) and status.sessions[0].queued_bytes > 1 << 20

    eventually(queued)
    assert sample(pod, "enginecore_server_queued_bytes") > 1 << 20
    assert sample(pod, "enginecore_server_queued_messages") > 50
    (session,) = pod.status().sessions
    assert session.queued_bytes > session.queued_messages > 50


def test_phases_have_their_seconds(make_pod: MakePod) -> None:
    pod = make_pod("--load-seconds", "0.5")
    name = "enginecore_server_phase_seconds_total"
    loading = sample(pod, f'{name}{{phase="Loading"}}')
    assert loading >= 0.5
    assert sample(pod, f'{name}{{phase="Loading"}}') == loading, "it is over"
    assert sample(pod, f'{name}{{phase="Draining"}}') == 0.0
    ready = [sample(pod, f'{name}{{phase="Ready"}}') for _ in range(3)]
    assert all(before < after for before, after in pairwise(ready))
    assert pod.status().phase_seconds["Loading"] == pytest.approx(loading, abs=0.01)


def test_the_status_page_is_complete(make_pod: MakePod, connect: Connect) -> None:
    transport = msgspec.structs.replace(LOOPBACK, max_clients=2)
    pod = make_pod(*ENDLESS, "--stats", rank=3, epoch=7, cluster="smollm", transport=transport)
    client = connect(pod, name="front end")
    client.ready()
    client.add(request("runs", max_tokens=100_000))
    client.expect(EngineCoreOutputs)
    page = json.loads(pod.get("/status"))
    (session,) = page.pop("sessions")
    assert session.pop("outputsSent") >= 1
    assert session == {
        "slot": 1, "name": "front end", "role": "admin", "connected": True, "inFlight": 1,
        "calls": 0, "queuedMessages": 0, "queuedBytes": 0,
    }  # fmt: skip
    assert page == page | {
        "rank": 3, "epoch": 7, "cluster": "smollm", "modelName": "stub", "runtime": "custom",
        "phase": "Ready", "reason": "EngineReady", "clients": 1, "inFlight": 1,
        "inputPort": pod.input_port, "outputPort": pod.output_port, "httpPort": pod.http_port,
        "limits": {"frameBytes": 256 << 20, "inFlight": 1024, "inFlightTotal": 16384,
                   "promptTokens": 200_000},
    }  # fmt: skip
    assert page["load"]["running"] == 1
    assert page["engine"]["vocabSize"] == 1000
    assert [each["phase"] for each in page["phases"]][-1] == "Ready"
    assert page["logTail"][-1] == "stub: ready"


def test_times_inside_the_engine_come_from_its_events(tmp_path: Any) -> None:
    model = write_tiny_llama(tmp_path / "tiny")
    config = torch_config(model, "--kv-cache-bytes", str(4 << 20), "--threads", "1",
                          "--device", "cpu", "--max-num-seqs", "1")  # fmt: skip
    with Pod(config) as pod, SyncMPClient(client_addresses([pod])) as client:
        prompt = list(range(1, 65))
        for _ in range(2):
            streams = [client.generate(prompt, SamplingParams(max_tokens=40)) for _ in range(2)]
            for stream in streams:
                list(stream)
        with pytest.raises(RequestRejectedError):
            list(client.generate([10**6]))
        spent = {
            part: (sample(pod, f"{name}_count"), sample(pod, f"{name}_sum"))
            for part in ("queue", "prefill", "decode", "inference")
            for name in [f"vllm:request_{part}_time_seconds"]
        }
        whole = sample(pod, "vllm:e2e_request_latency_seconds_sum")
        assert {count for count, _ in spent.values()} == {4.0}
        total = {part: seconds for part, (_, seconds) in spent.items()}
        assert total["queue"] > total["decode"] / 4, "one waits for the other"
        assert total["inference"] == pytest.approx(total["prefill"] + total["decode"])
        assert total["queue"] + total["inference"] == pytest.approx(whole, rel=0.2)
        queries, hits = (
            sample(pod, f"vllm:prefix_cache_{what}_total") for what in ("queries", "hits")
        )
        assert queries == 4 * len(prompt)
        assert 0 < hits < queries
