"""A server that cannot be made says why and leaves nothing open, whatever it was."""

import pytest
from prometheus_client import CollectorRegistry

from enginecore_server.model_facts import ModelInputs
from enginecore_server.server import serve
from support.pod import stub_config


@pytest.mark.timeout(20)
@pytest.mark.parametrize("part", ["ClientDesk", "ExposedSockets"])
async def test_a_fault_in_a_part_is_told(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(f"no {part} today")

    monkeypatch.setattr(f"enginecore_server.server.{part}", fail)
    with pytest.raises(RuntimeError, match=part):
        await serve(stub_config(), ModelInputs(1000), CollectorRegistry())


@pytest.mark.timeout(20)
async def test_a_fault_between_two_sockets_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sockets that were made before it are nobody's to close."""

    def fail(*_: object) -> None:
        raise RuntimeError("no monitors today")

    monkeypatch.setattr("enginecore_server.connections.ConnectionMonitor", fail)
    with pytest.raises(RuntimeError, match="no monitors"):
        await serve(stub_config(), ModelInputs(1000), CollectorRegistry())
