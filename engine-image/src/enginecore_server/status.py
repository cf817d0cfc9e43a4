"""The status document, and its short form for the kubelet."""

from collections.abc import Sequence

import msgspec

from enginecore_server.state import ServerState
from enginecore_wire.contract import ServerStatus

TERMINATION_BYTES = 4096
"""What the kubelet keeps of a termination message."""


class Ports(msgspec.Struct, frozen=True):
    """The ports in use; 0 before they are bound."""

    input: int = 0
    output: int = 0
    http: int = 0


def server_status(state: ServerState, ports: Ports, log_tail: Sequence[str]) -> ServerStatus:
    """Return the status as of now."""
    config, phases = state.config, state.phases
    return ServerStatus(
        name=config.name,
        rank=config.rank,
        epoch=config.epoch,
        phase=phases.phase,
        reason=phases.reason,
        message=phases.message,
        since=phases.records[-1].at,
        input_port=ports.input,
        output_port=ports.output,
        http_port=ports.http,
        engine=state.facts,
        clients=len(state.book),
        in_flight=state.in_flight,
        phases=phases.records,
        log_tail=list(log_tail),
    )


def termination_message(status: ServerStatus) -> bytes:
    """Return the status as JSON with as many of the last log lines as fit.

    The operator parses it, so what does not fit is left out, never cut: first the oldest log
    lines, then the history of phases, then the end of the message.
    """
    fitting = msgspec.structs.replace(status, log_tail=list(status.log_tail))
    text = msgspec.json.encode(fitting)
    while len(text) > TERMINATION_BYTES:
        if fitting.log_tail:
            fitting = msgspec.structs.replace(fitting, log_tail=fitting.log_tail[1:])
        elif fitting.phases:
            fitting = msgspec.structs.replace(fitting, phases=[])
        elif fitting.message:
            fitting = msgspec.structs.replace(
                fitting, message=fitting.message[: len(fitting.message) // 2]
            )
        else:
            fitting = msgspec.structs.replace(
                fitting, reason="", name=fitting.name[:253], engine=None
            )
        text = msgspec.json.encode(fitting)
    return text
