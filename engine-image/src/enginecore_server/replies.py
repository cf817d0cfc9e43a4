"""The control messages the server sends, made from its state."""

from enginecore_server.sessions import Session
from enginecore_server.state import ServerState
from enginecore_wire.control import Draining, PhaseChange, Pong, Ready, Stats, Timers
from enginecore_wire.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    SchedulerStats,
)


def ready(state: ServerState, session: Session) -> Ready:
    """Return READY for a session; the engine must be ready."""
    config, liveness = state.config, state.config.liveness
    assert state.ready_payload is not None
    assert state.facts is not None
    return Ready(
        protocol=session.protocol,
        layout=state.dialect.layout,
        name=config.name,
        rank=config.rank,
        epoch=config.epoch,
        slot=session.slot,
        nonce=session.nonce,
        live_clients=len(state.book),
        outputs_sent=session.outputs_sent,
        requests=list(session.requests),
        calls=sorted(session.calls),
        engine=state.ready_payload,
        vocab_size=state.model.vocab_size,
        hidden_size=state.model.hidden_size,
        modalities=state.model.modalities,
        max_logprobs=state.model.max_logprobs,
        model_name=state.served_name,
        runtime=config.runtime.type,
        runtime_version=state.facts.version or config.runtime.version,
        limits=state.limits,
        timers=Timers(
            ping_seconds=liveness.ping_seconds,
            lost_after_seconds=liveness.lost_after_seconds,
            grace_seconds=liveness.grace_seconds,
            step_deadline_seconds=liveness.step_deadline_seconds,
            drain_deadline_seconds=config.drain_deadline_seconds,
        ),
    )


def phase_change(state: ServerState) -> PhaseChange:
    """Return PHASE as of now."""
    phases = state.phases
    return PhaseChange(phase=phases.phase, reason=phases.reason, since_seconds=phases.seconds)


def draining(state: ServerState) -> Draining:
    """Return DRAINING with the time that is left."""
    left = state.config.drain_deadline_seconds - state.phases.seconds
    return Draining(reason=state.phases.message, deadline_seconds=max(0.0, left))


def pong(state: ServerState, session: Session, sequence: int) -> Pong:
    """Return the answer to a PING."""
    return Pong(
        sequence=sequence,
        nonce=session.nonce,
        epoch=state.config.epoch,
        outputs_sent=session.outputs_sent,
        live_clients=len(state.book),
    )


def stats(state: ServerState, scheduler_stats: SchedulerStats, now: float) -> Stats:
    """Return STATS; `now` is the host's monotonic clock in seconds."""
    return Stats(
        engine_index=state.config.rank,
        timestamp=state.load.timestamp(state.in_flight, now),
        scheduler_stats=scheduler_stats,
    )


def abort_outputs(rank: int, request_ids: list[str], timestamp: float) -> EngineCoreOutputs:
    """Return the engine message that ends requests with finish reason ABORT."""
    outputs = [
        EngineCoreOutput(request_id, [], finish_reason=FinishReason.ABORT)
        for request_id in request_ids
    ]
    return EngineCoreOutputs(rank, outputs, timestamp=timestamp)
