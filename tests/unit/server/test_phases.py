"""Which phase may follow which."""

import pytest

from enginecore_server.phases import PhaseLog
from enginecore_wire.control import Phase

P = Phase


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ([P.HANDSHAKING, P.LOADING, P.READY, P.DRAINING, P.STOPPED], P.STOPPED),
        ([P.HANDSHAKING, P.FAILED, P.READY], P.FAILED),
        ([P.STOPPED, P.FAILED], P.STOPPED),
        ([P.READY], P.STARTING),
        ([P.HANDSHAKING, P.LOADING, P.LOADING], P.LOADING),
        ([P.HANDSHAKING, P.LOADING, P.READY, P.STOPPED], P.READY),
        ([P.HANDSHAKING, P.LOADING, P.DRAINING], P.LOADING),
        ([P.HANDSHAKING, P.LOADING, P.READY, P.DRAINING, P.READY], P.DRAINING),
    ],
)
def test_only_known_transitions_are_made(path: list[Phase], end: Phase) -> None:
    log = PhaseLog(Clock(), Clock())
    for phase in path:
        log.enter(phase)
    assert log.phase is end


def test_records_have_times_and_reasons() -> None:
    wall, monotonic = Clock(), Clock()
    log = PhaseLog(wall, monotonic)
    wall.now, monotonic.now = 200.0, 103.0
    assert log.enter(Phase.FAILED, "EngineExited", "code 1")
    monotonic.now = 105.5
    assert [(record.phase, record.at, record.reason) for record in log.records] == [
        ("Starting", 100.0, ""),
        ("Failed", 200.0, "EngineExited"),
    ]
    assert (log.message, log.seconds) == ("code 1", 2.5)
    assert log.spent == dict.fromkeys(P, 0.0) | {P.STARTING: 3.0, P.FAILED: 2.5}


@pytest.mark.parametrize(
    ("path", "accepts"),
    [
        ([], False),
        ([P.HANDSHAKING, P.LOADING], False),
        ([P.HANDSHAKING, P.LOADING, P.READY], True),
        ([P.HANDSHAKING, P.LOADING, P.READY, P.DRAINING], True),
        ([P.FAILED], False),
    ],
)
def test_clients_are_accepted_while_the_engine_works(path: list[Phase], accepts: bool) -> None:
    log = PhaseLog(Clock(), Clock())
    for phase in path:
        assert log.enter(phase)
    assert log.accepts_clients is accepts
