"""The status document, and its short form for the kubelet."""

from collections.abc import Sequence

import msgspec

from enginecore_server.sessions import Session
from enginecore_server.state import ServerState
from enginecore_wire.contract import ClientStatus, LimitsStatus, LoadStatus, ServerStatus

TERMINATION_BYTES = 4096
"""What the kubelet keeps of a termination message."""


class Ports(msgspec.Struct, frozen=True):
    """The ports in use; 0 before they are bound."""

    input: int = 0
    output: int = 0
    http: int = 0


def server_status(state: ServerState, ports: Ports, log_tail: Sequence[str]) -> ServerStatus:
    """Return the status as of now."""
    config, phases, limits = state.config, state.phases, state.limits
    load = state.load.current(state.in_flight)
    sessions = state.book.sessions()
    return ServerStatus(
        name=config.name,
        rank=config.rank,
        epoch=config.epoch,
        cluster=config.cluster,
        model_name=state.served_name,
        runtime=config.runtime.type,
        phase=phases.phase,
        reason=phases.reason,
        message=phases.message,
        since=phases.records[-1].at,
        input_port=ports.input,
        output_port=ports.output,
        http_port=ports.http,
        engine=state.facts,
        clients=len(sessions),
        in_flight=state.in_flight,
        load=LoadStatus(
            running=load.num_running_reqs,
            waiting=load.num_waiting_reqs,
            kv_cache_usage=load.kv_cache_usage,
        ),
        limits=LimitsStatus(
            frame_bytes=limits.frame_bytes,
            in_flight=limits.in_flight,
            in_flight_total=limits.in_flight_total,
            prompt_tokens=limits.prompt_tokens,
        ),
        sessions=[_client(session) for session in sessions],
        phases=phases.records,
        phase_seconds={phase: round(seconds, 3) for phase, seconds in phases.spent.items()},
        log_tail=list(log_tail),
    )


def termination_message(status: ServerStatus) -> bytes:
    """Return the status as JSON with as many of the last log lines as fit.

    The operator parses it, so what does not fit is left out, never cut: who was connected anyway,
    then the oldest log lines, then the history of phases, then the end of the message.
    """
    fitting = msgspec.structs.replace(status, log_tail=list(status.log_tail), sessions=[])
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
                fitting,
                reason="",
                name=fitting.name[:253],
                cluster="",
                model_name="",
                engine=None,
            )
        text = msgspec.json.encode(fitting)
    return text


def _client(session: Session) -> ClientStatus:
    return ClientStatus(
        slot=session.slot,
        name=session.name,
        role=str(session.role),
        connected=session.connected,
        in_flight=len(session.requests),
        calls=len(session.calls),
        outputs_sent=session.outputs_sent,
        queued_messages=len(session.backlog),
        queued_bytes=session.backlog_bytes,
    )
