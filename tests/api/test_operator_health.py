"""/healthz of an operator whose way to a real API server falls silent, and comes back."""

import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from enginecore_operator.health import SILENCE_SECONDS
from enginecore_operator.service import RETRY_SECONDS, SETTLE_SECONDS
from support.api_relay import WATCHES, ApiRelay, api_relay, through
from support.eventually import eventually
from support.operator_cluster import engine_cluster
from support.operator_process import Kubectl, OperatorProcess, grant, operators

pytestmark = [pytest.mark.api, pytest.mark.timeout(240)]

RESYNC_SECONDS = 1.0
COMPARISON_SECONDS = RESYNC_SECONDS + SETTLE_SECONDS
"""How long one comparison with the API server takes; a change may just miss the one under way."""
START_SECONDS = 40.0


@pytest.fixture
def relay(kubectl: Kubectl) -> Iterator[ApiRelay]:
    with api_relay(kubectl.cluster) as found:
        yield found


@pytest.fixture
def operator(kubectl: Kubectl, relay: ApiRelay, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator behind the relay that has made an EngineCluster Available."""
    kubeconfig = through(relay, grant(kubectl, tmp_path), tmp_path)
    with operators(kubectl, tmp_path, kubeconfig) as runner:
        started = runner.start(RESYNC_SECONDS=str(RESYNC_SECONDS))
        kubectl.apply(engine_cluster(replicas=1))

        def available() -> bool:
            return kubectl.condition("enginecluster", "smollm", "Available")[0] == "True"

        eventually(available, "available", START_SECONDS, 0.3)
        assert health(started) == ""
        yield started


def health(operator: OperatorProcess) -> str:
    """Return status and complaint of /healthz; empty where all is well."""
    try:
        assert operator.get("/healthz") == "ok\n"
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code} {error.read().decode()}"
    return ""


def wait_for(look: Callable[[], bool], what: str, seconds: float) -> float:
    """Wait for something; return how long it took."""
    started = time.monotonic()
    eventually(look, what, seconds, 0.2)
    return round(time.monotonic() - started, 1)


def test_a_dead_watch_is_noticed_and_mended(
    kubectl: Kubectl,
    relay: ApiRelay,
    operator: OperatorProcess,
    record_property: Callable[[str, object], None],
) -> None:
    """Lists and the Lease go on: only what the watches would have told is missing."""
    relay.silence(WATCHES)
    kubectl.run("annotate", "enginecluster/smollm", "look=here")
    noticed = wait_for(lambda: health(operator) != "", "noticed", 2 * COMPARISON_SECONDS + 4)
    record_property("noticed_seconds", noticed)
    assert health(operator) == "503 the watch is dead: EngineCluster\n"
    # The comparison itself brought the change in: the operator works on without the watch.
    assert "missed 1 changes" in operator.text

    relay.speak()
    mended = wait_for(lambda: health(operator) == "", "mended", 2 * COMPARISON_SECONDS + 4)
    record_property("mended_seconds", mended)
    kubectl.run("scale", "enginecluster/smollm", "--replicas=2")
    eventually(
        lambda: len(kubectl.find_all("enginecores")) == 2, "watches tell again", START_SECONDS, 0.2
    )


def test_a_silent_api_server_is_noticed_and_mended(
    relay: ApiRelay,
    operator: OperatorProcess,
    record_property: Callable[[str, object], None],
) -> None:
    relay.silence()
    noticed = wait_for(lambda: health(operator) != "", "noticed", SILENCE_SECONDS + 5)
    record_property("noticed_seconds", noticed)
    assert noticed > SILENCE_SECONDS - 10, "a moment's silence is nothing"
    assert health(operator).startswith("503 the API server last served the Lease ")

    relay.speak()
    mended = wait_for(lambda: health(operator) == "", "mended", 4 * RETRY_SECONDS)
    record_property("mended_seconds", mended)
