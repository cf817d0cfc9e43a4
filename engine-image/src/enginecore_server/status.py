"""The status document."""

from collections.abc import Sequence

import msgspec

from enginecore_server.sessions import Session
from enginecore_server.state import ServerState
from enginecore_wire.contract import ClientStatus, LimitsStatus, LoadStatus, ServerStatus


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
        since=phases.since,
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
