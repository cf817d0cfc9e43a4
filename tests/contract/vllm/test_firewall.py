"""Nothing a client sends can hurt an engine: the same attacks on a real vLLM behind our server.

All on one engine, which is never started again; most of them end or deafen a vLLM that clients
reach themselves.
"""

import pytest

from support.firewall import ATTACKS, town
from support.vllm_engines import EngineRoom, PodSet

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.may_leak("processes", "threads", "sockets", reason="engines are shared"),
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_harms_nobody(room: EngineRoom, attack: str) -> None:
    engines = room.get("pods")
    assert isinstance(engines, PodSet)
    with town(engines.pods[0]) as watched:
        ATTACKS[attack](watched)
