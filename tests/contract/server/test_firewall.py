"""Nothing a client sends can hurt an engine: all attacks on the engine without a model."""

import pytest

from support.firewall import ATTACKS, town
from support.pod import Pod, stub_config
from support.pod_pages import sample, short

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_harms_nobody(attack: str) -> None:
    config = stub_config("--tokens", "400", "--token-seconds", "0.002", liveness=short())
    with Pod(config) as pod:
        pod.wait_ready()
        with town(pod) as watched:
            ATTACKS[attack](watched)
            if attack == "every_message":
                assert sample(pod, 'enginecore_server_rejected_total{reason="unknown_type"}') > 250
                assert {kind for kind, _ in watched.polite.journal(1)} == {"add", "utility"}
