"""The operator's NetworkPolicies, as a real node enforces them."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enginecore_wire.contract import HTTP_PORT, PUBLISH_PORT, REPORT_PORT
from support.client_pod import ClientPod, client_label
from support.eventually import eventually
from support.installation import Installation
from support.space import Engines, Space, temporary_space

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

WAIT = 30.0


@pytest.fixture
def elsewhere(installation: Installation) -> Iterator[Space]:
    """Another namespace."""
    with temporary_space(installation.cluster) as found:
        yield found


def ports_of(engines: Engines) -> dict[str, str]:
    """Return the places of the first engine and of the coordinator, by name."""
    status = engines.status()["clientAddresses"]
    engine, _, given = status["input_address"][0].removeprefix("tcp://").rpartition(":")
    output = status["output_address"][0].rpartition(":")[2]
    coordinator = status["stats_update_address"].removeprefix("tcp://").rpartition(":")[0]
    return {
        "input": f"{engine}:{given}",
        "output": f"{engine}:{output}",
        "http": f"{engine}:{HTTP_PORT}",
        "publish": f"{coordinator}:{PUBLISH_PORT}",
        "report": f"{coordinator}:{REPORT_PORT}",
        "coordinator's http": f"{coordinator}:{HTTP_PORT}",
    }


def expect(pod: ClientPod, places: dict[str, str], *names: str) -> None:
    """Wait until a pod reaches just these of the places: packet rules follow a moment later."""
    wanted = [place for name, place in places.items() if name in names]
    eventually(
        lambda: pod.reached(*places.values()) == wanted,
        f"{pod.name} reaches {', '.join(names) or 'nothing'}",
        WAIT,
        0.3,
    )


def operator_pod(installation: Installation) -> ClientPod:
    """Return the operator's pod, to look from."""
    (pod,) = installation.pods()
    home = Space(installation.cluster, installation.namespace)
    return ClientPod(home, pod["metadata"]["name"])


def is_well(engines: Engines) -> bool:
    """Tell whether probes and the operator's look at an engine do their work."""
    conditions = engines.core(0)["status"]["conditions"]
    return {(c["type"], c["status"]) for c in conditions} >= {
        ("Ready", "True"),
        ("FactsKnown", "True"),
    }


def reports(coordinator: str) -> bool:
    """Tell whether the engine's load is known to the coordinator."""
    with urllib.request.urlopen(f"http://{coordinator}/status", timeout=5) as answer:
        return [row["rank"] for row in json.loads(answer.read())["ranks"]] == [0]


def test_only_labelled_clients_reach_an_engine(
    space: Space,
    elsewhere: Space,
    installation: Installation,
    tiny_spec: dict[str, Any],
    tmp_path: Path,
) -> None:
    engines = Engines(space, "closed")
    engines.apply(replicas=1, **tiny_spec)
    friend, stranger = ClientPod(space, "friend"), ClientPod(space, "stranger")
    guest = ClientPod(elsewhere, "guest")
    friend.start(installation.engine_image, engines.name)
    stranger.start(installation.engine_image)
    guest.start(installation.engine_image, engines.name)
    status = engines.wait_ready(1)
    places = ports_of(engines)
    key = Path(engines.key_options(tmp_path)["client_key"]).read_text()

    expect(friend, places, "input", "output", "publish")
    assert friend.ask(status["clientAddresses"], key) == [4]
    expect(stranger, places)
    expect(guest, places)
    expect(operator_pod(installation), places, "http")
    eventually(lambda: is_well(engines), "kubelet and operator are let in", WAIT, 0.3)
    eventually(lambda: reports(places["coordinator's http"]), "the engine is let in", WAIT, 0.3)

    # Who is let in is a matter of labels: of pods here, and of other namespaces as a whole.
    elsewhere.kubectl.run("label", "namespace", elsewhere.name, f"{client_label(space.name)}=true")
    expect(guest, places, "input", "output", "publish")
    assert guest.ask(status["clientAddresses"], key) == [4]
    stranger.label("enginecore.dev/scraper=true")
    expect(stranger, places, "http", "coordinator's http")
    elsewhere.kubectl.run(
        *("label", "namespace", elsewhere.name),
        *("enginecore.dev/scraper=true", f"{client_label(space.name)}-"),
    )
    expect(guest, places, "http", "coordinator's http")
    friend.label(f"{client_label(engines.name)}-")
    expect(friend, places)

    stranger.label("enginecore.dev/scraper-")
    engines.apply(replicas=1, **tiny_spec, transport={"networkPolicy": "None"})
    expect(stranger, places, *places)
    assert stranger.ask(status["clientAddresses"], key) == [4]
    assert engines.epoch(0) == 1, "no pod was replaced for any of this"
    assert is_well(engines)


def test_an_exposed_engine_is_open_to_all(
    space: Space, installation: Installation, tiny_spec: dict[str, Any]
) -> None:
    engines = Engines(space, "open")
    engines.apply(replicas=1, **tiny_spec, transport={"expose": "NodePort"})
    stranger = ClientPod(space, "stranger")
    stranger.start(installation.engine_image)
    engines.wait_ready(1)
    expect(stranger, ports_of(engines), "input", "output")
