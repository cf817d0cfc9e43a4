"""Which processes below an engine are part of it."""

import pytest

from enginecore_server.engine_processes import is_worker


@pytest.mark.parametrize(
    ("title", "part"),
    [
        ("VLLM::Worker", True),
        ("VLLM::Worker_TP0", True),
        ("VLLM::Worker_PP1_TP3_EP3", True),
        ("mine::Worker_TP0", True),
        ("a::b::Worker_TP0", True),
        ("VLLM::EngineCore", False),
        ("VLLM::APIServer_0", False),
        ("Worker_TP0", False),
        ("/usr/bin/python3", False),
        ("", False),
    ],
)
def test_workers_are_known_by_their_title(title: str, part: bool) -> None:
    assert is_worker(title) is part
