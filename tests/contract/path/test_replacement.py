"""A pod that is replaced, at its old address or a new one: the same client goes on."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from enginecore_client.errors import EngineDeadError, EngineNotReadyError
from enginecore_wire.contract import TransportConfig
from support.eventually import eventually
from support.faces import Face, params
from support.pod import Pod, client_addresses

MakeFace = Callable[..., Face]
MakePod = Callable[..., Pod]


def same_place(pod: Pod) -> dict[str, Any]:
    """Return the fields of a replacement that listens where `pod` did."""
    transport = TransportConfig(
        host="127.0.0.1", input_port=pod.input_port, output_port=pod.output_port, http_port=0
    )
    return {"transport": transport, "epoch": pod.config.epoch + 1}


def answers(face: Face, **options: Any) -> bool:
    """Say whether a request is served; an engine that is not back yet is no."""
    try:
        outputs = list(face.generate([1, 2, 3], params(4), **options))
    except (EngineDeadError, EngineNotReadyError):
        return False
    assert [token for output in outputs for token in output.new_token_ids] == [1, 2, 3, 1]
    return True


def is_dead(face: Face) -> bool:
    """Say whether a request fails because the engine is gone, not just away for a moment."""
    with pytest.raises((EngineDeadError, EngineNotReadyError)) as error:
        list(face.generate([1, 2, 3], params(4)))
    return error.type is EngineDeadError


def write_addresses(file: Path, pods: list[Pod]) -> Path:
    """Replace the file as the kubelet replaces a ConfigMap's: at once."""
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(client_addresses(pods)))
    fresh.rename(file)
    return file


def test_replacement_at_the_same_address_is_used(make_face: MakeFace, make_pod: MakePod) -> None:
    pod = make_pod()
    face = make_face(client_addresses([pod]))
    for _ in range(3):
        assert answers(face)
        pod.kill()
        pod.process.wait(timeout=10)
        eventually(lambda: is_dead(face), "the client knows that the engine is gone")
        pod = make_pod(**same_place(pod))
        eventually(lambda: answers(face), "the replacement answers")


def test_replacement_at_a_new_address_is_used(
    make_face: MakeFace, make_pod: MakePod, tmp_path: Path, registry: CollectorRegistry
) -> None:
    old = make_pod()
    file = write_addresses(tmp_path / "addresses.json", [old])
    face = make_face(str(file), registry=registry)
    assert answers(face)
    old.kill()
    new = make_pod(epoch=1)
    write_addresses(file, [new])
    eventually(lambda: answers(face), "the replacement answers")
    assert new.status().clients == 1


def test_request_without_a_token_survives_the_replacement(
    make_face: MakeFace, make_pod: MakePod
) -> None:
    pod = make_pod("--ignore")
    face = make_face(client_addresses([pod]))
    stream = face.generate([1, 2, 3], params(4), retry=True)
    with ThreadPoolExecutor() as threads:
        outputs = threads.submit(list, stream)
        eventually(lambda: pod.status().in_flight == 1)
        pod.kill()
        pod.process.wait(timeout=10)
        make_pod(**same_place(pod))
        tokens = [token for output in outputs.result(20) for token in output.new_token_ids]
    assert tokens == [1, 2, 3, 1]


def test_scale_up_and_down_by_the_address_file(
    make_face: MakeFace, make_pod: MakePod, tmp_path: Path, registry: CollectorRegistry
) -> None:
    pods = [make_pod("--stats", rank=rank) for rank in (0, 1)]
    file = write_addresses(tmp_path / "addresses.json", pods[:1])
    face = make_face(str(file), registry=registry)
    labels = {"model_name": "stub", "engine": "1"}
    ready = "enginecore_client_engine_ready"
    assert answers(face)
    write_addresses(file, pods)
    eventually(lambda: registry.get_sample_value(ready, labels) == 1)
    assert answers(face, data_parallel_rank=1)
    write_addresses(file, pods[:1])
    eventually(lambda: registry.get_sample_value(ready, labels) is None)
    assert not [
        sample
        for metric in registry.collect()
        for sample in metric.samples
        if sample.labels.get("engine") == "1"
    ]
    eventually(lambda: pods[1].status().clients == 0)
    assert answers(face)
