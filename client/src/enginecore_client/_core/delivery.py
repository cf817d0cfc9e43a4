"""What each message of an engine means for the requests and calls on it."""

from typing import Final, NamedTuple

import msgspec

from enginecore_client._core.admission import Admission
from enginecore_client._core.books import Outgoing, RequestRecord
from enginecore_client._core.connection import Connection
from enginecore_client._core.damage import concerned
from enginecore_client._core.events import Delivered, EngineUp, LoadKnown, RankTaken, StatsUpdate
from enginecore_client._core.fleet import Fleet
from enginecore_client._core.ledger import Ledger
from enginecore_client._core.routing import Balancer
from enginecore_client._core.waves import Waves
from enginecore_client.errors import (
    EngineCoreError,
    EngineDrainingError,
    EngineNotReadyError,
    LostOutputsError,
    NotPermittedError,
    OverloadedError,
    ProtocolMismatchError,
    RequestRejectedError,
    UtilityError,
)
from enginecore_wire.codec import MsgpackDecoder
from enginecore_wire.control import ControlMessage, Pong, Ready, Reject, RejectCode, Stats
from enginecore_wire.coordination import EngineLoad
from enginecore_wire.frames import Frame, control_type
from enginecore_wire.outputs import (
    EngineCoreOutput,
    EngineCoreOutputs,
    SchedulerStats,
    UtilityOutput,
)
from enginecore_wire.translation import outputs_decoder
from enginecore_wire.wording import counted, is_or_are

_REJECTIONS: Final[dict[str, type[EngineCoreError]]] = {
    RejectCode.OVERLOADED: OverloadedError,
    RejectCode.DRAINING: EngineDrainingError,
    RejectCode.NOT_READY: EngineNotReadyError,
    RejectCode.TOO_MANY_CLIENTS: OverloadedError,
    RejectCode.PROTOCOL_MISMATCH: ProtocolMismatchError,
    RejectCode.NOT_PERMITTED: NotPermittedError,
}


class _LookedUp(NamedTuple):
    """Outputs whose requests are known, and the request of each.

    `queued` are those of get_output, and `names` by internal id what their callers call them.
    """

    records: list[RequestRecord]
    outputs: list[EngineCoreOutput]
    queued: list[EngineCoreOutput]
    names: dict[str, str]


class Delivery:
    """Brings messages to the records they concern; `prompts` says whether token ids of prompts
    are to be checked before they are sent."""

    def __init__(
        self,
        fleet: Fleet,
        ledger: Ledger,
        balancer: Balancer[int],
        waves: Waves,
        *,
        prompts: bool = True,
    ) -> None:
        self._checks_prompts = prompts
        self.admissions: dict[int, Admission] = {}
        self.unreadable = 0
        self.loads_known = False
        self._fleet = fleet
        self._ledger = ledger
        self._balancer = balancer
        self._waves = waves
        self._decoders: dict[int, MsgpackDecoder[EngineCoreOutputs]] = {}
        self._own_loads: dict[int, EngineLoad] = {}

    def receive(self, connection: Connection, frames: list[Frame], now: float) -> None:
        """Take in one message of an engine."""
        try:
            message = connection.receive(frames, now)
        except msgspec.DecodeError:
            self.unreadable += 1
            return
        if connection.ended:
            return
        if message is not None:
            self._control(connection, message, now)
        elif control_type(frames[0]) is None:
            if connection.doubtful:
                connection.held.append(frames)
            else:
                self._outputs(connection, frames, now)

    def loads(self, loads: list[EngineLoad]) -> None:
        """Take over what the coordinator says about each rank."""
        for connection in self._fleet.working():
            rank = self._fleet.rank(connection)
            if rank < len(loads):
                load = loads[rank]
                self._load(rank, load)
                stats = SchedulerStats(
                    num_running_reqs=load.running,
                    num_waiting_reqs=load.waiting,
                    kv_cache_usage=load.kv_usage,
                )
                self._ledger.events.append(StatsUpdate(rank, stats))

    def loads_missed(self) -> None:
        """Go on with what each engine said of itself last: it says no more until that changes."""
        if not self.loads_known:
            return
        self.loads_known = False
        for connection in self._fleet.working():
            load = self._own_loads.get(connection.link)
            if load is not None:
                self._load(self._fleet.rank(connection), load)

    def forget(self, connection: Connection) -> None:
        """Drop what belongs to a connection."""
        self.admissions.pop(connection.link, None)
        self._decoders.pop(connection.link, None)
        self._own_loads.pop(connection.link, None)

    def cancel(self, connection: Connection, internal_ids: list[str]) -> None:
        """Tell an engine to forget requests."""
        if internal_ids and connection.link in self.admissions:
            frames = self.admissions[connection.link].abort(internal_ids)
            connection.outbox.append(Outgoing(frames))

    def _control(self, connection: Connection, message: ControlMessage, now: float) -> None:
        match message:
            case Ready():
                self.ready(connection, message, now)
            case Pong():
                self._compare(connection, message.outputs_sent, now)
            case Stats():
                self._stats(connection, message.scheduler_stats)
            case Reject():
                self._rejected(connection, message, now)

    def ready(self, connection: Connection, ready: Ready, now: float) -> None:
        """Take note that an engine is ready, for the first time or again."""
        if connection.link not in self.admissions:
            rank = self._fleet.adopt(connection, ready)
            if rank != ready.rank:
                address = connection.endpoint.input_address
                self._ledger.events.append(RankTaken(rank, ready.rank, address))
            self.admissions[connection.link] = Admission(
                ready, connection.dialect, prompts=self._checks_prompts
            )
            self._decoders.pop(connection.link, None)
            self._ledger.events.append(EngineUp(rank, ready))
            connection.received = ready.outputs_sent
            return
        held = set(ready.requests)
        strangers = sorted(held - connection.requests.keys())
        intact = self._compare(connection, ready.outputs_sent, now)
        waiting, connection.held = connection.held, []
        for frames in waiting:
            self._outputs(connection, frames, now)
        lost = [r for r in connection.requests.values() if r.sent and r.internal_id not in held]
        if lost:
            self._lose(connection, lost, "the engine never received it, or its end was lost", now)
        self.cancel(connection, strangers)
        self._lose_unheld_calls(connection, ready, lost=bool(lost) or not intact)

    def _lose_unheld_calls(self, connection: Connection, ready: Ready, *, lost: bool) -> None:
        """End the calls of which an engine that answers again knows nothing; an older pod, which
        does not say what it has, may have lost any on the way in."""
        doubtful, connection.calls_doubtful = connection.calls_doubtful, False
        if lost or (ready.calls is None and doubtful):
            self._lose_calls(connection)
        elif ready.calls is not None:
            self._lose_calls(connection, held=frozenset(ready.calls))

    def _compare(self, connection: Connection, outputs_sent: int, now: float) -> bool:
        missing = outputs_sent - connection.received
        if missing == 0:
            return True
        connection.received = outputs_sent
        connection.held.clear()
        sent = [record for record in connection.requests.values() if record.sent]
        gap = f"{counted(abs(missing), 'message')} of the engine {is_or_are(abs(missing))} missing"
        self._lose(connection, sent, gap, now)
        self._lose_calls(connection)
        return False

    def _lose(
        self, connection: Connection, records: list[RequestRecord], reason: str, now: float
    ) -> None:
        self.cancel(connection, [record.internal_id for record in records])
        error = LostOutputsError(
            f"the connection broke and the stream has a hole: {reason}",
            engine=self._fleet.rank(connection),
        )
        self._ledger.fail_and_report(records, connection, error, now)

    def _lose_calls(
        self,
        connection: Connection,
        reason: str = "the connection broke",
        held: frozenset[int] = frozenset(),
    ) -> None:
        """End the calls that were sent, but for those which the engine still has."""
        sent = [call for call in connection.calls.values() if call.sent]
        for call in [call for call in sent if call.call_id not in held]:
            error = LostOutputsError(
                f"{call.method}: {reason}; it may or may not have been executed",
                engine=self._fleet.rank(connection),
            )
            self._ledger.end_call(call, connection, None, error)

    def _stats(self, connection: Connection, stats: SchedulerStats) -> None:
        if not self._fleet.is_current(connection):
            return
        rank = self._fleet.rank(connection)
        load = EngineLoad(stats.num_waiting_reqs, stats.num_running_reqs, stats.kv_cache_usage)
        self._own_loads[connection.link] = load
        if not self.loads_known:
            self._load(rank, load)
        self._ledger.events.append(StatsUpdate(rank, stats))

    def _load(self, rank: int, load: EngineLoad) -> None:
        self._balancer.report(rank, load)
        self._ledger.events.append(LoadKnown(rank, load))

    def _rejected(self, connection: Connection, reject: Reject, now: float) -> None:
        rank = self._fleet.rank(connection)
        kind = _REJECTIONS.get(reject.code)
        error: EngineCoreError
        if kind is not None:
            error = kind(reject.message, engine=rank)
        else:
            error = RequestRejectedError(reject.message, field=reject.field, engine=rank)
        record = connection.requests.get(reject.request_id or "")
        if record is not None:
            self._ledger.fail_and_report([record], connection, error, now)
        call = connection.calls.get(-1 if reject.call_id is None else reject.call_id)
        if call is not None:
            self._ledger.end_call(call, connection, None, error)

    def _outputs(self, connection: Connection, frames: list[Frame], now: float) -> None:
        try:
            message = self._decoder(connection).decode(frames[0], frames[1:])
        except msgspec.DecodeError as error:
            self._unreadable(connection, frames, str(error), now)
            return
        self.outputs(connection, message, now)

    def outputs(self, connection: Connection, message: EngineCoreOutputs, now: float) -> None:
        """Take in a message of an engine that is decoded already."""
        if message.utility_output is not None:
            self._reply(connection, message.utility_output)
        if message.scheduler_stats is not None:
            self._stats(connection, message.scheduler_stats)
        if message.wave_complete is not None:
            self._waves.completed(message.wave_complete)
        if message.outputs or message.finished_requests or self._worth_reading(message):
            self._deliver(connection, message, now)

    def _decoder(self, connection: Connection) -> MsgpackDecoder[EngineCoreOutputs]:
        decoder = self._decoders.get(connection.link)
        if decoder is None:
            decoder = self._decoders[connection.link] = outputs_decoder(connection.dialect)
        return decoder

    def _worth_reading(self, message: EngineCoreOutputs) -> bool:
        if message.wave_complete is not None and self._waves.lockstep:
            return True
        return self._ledger.queued_count > 0 and not (
            message.scheduler_stats is None
            and message.wave_complete is None
            and message.start_wave is None
        )

    def _deliver(self, connection: Connection, message: EngineCoreOutputs, now: float) -> None:
        again = connection.roll.match(message.outputs)
        if again is None:
            found = self._look_up(connection, message.outputs)
        else:
            found = _LookedUp(again, message.outputs, [], {})
        rank = self._fleet.rank(connection)
        if message.finished_requests:
            finished = [self._name(connection, found.names, i) for i in message.finished_requests]
            message.finished_requests = [name for name in finished if name] or None
        told = None
        if found.queued or message.finished_requests or self._worth_reading(message):
            told = message
            told.engine_index = rank
            told.outputs = found.queued
            told.utility_output = None
        if found.records or told is not None:
            self._ledger.events.append(Delivered(rank, found.records, found.outputs, told, now))

    def _look_up(self, connection: Connection, sent: list[EngineCoreOutput]) -> _LookedUp:
        """Bring outputs to their requests: give them their names, count, end what ends."""
        find = connection.requests.get
        records: list[RequestRecord] = []
        outputs: list[EngineCoreOutput] = []
        queued: list[EngineCoreOutput] = []
        names: dict[str, str] = {}
        ended = False
        for output in sent:
            record = find(output.request_id)
            if record is None:
                continue
            output.request_id = record.request_id
            records.append(record)
            outputs.append(output)
            if record.sink is None:
                queued.append(output)
                names[record.internal_id] = record.request_id
            tokens = output.new_token_ids
            if tokens:
                record.tokens += len(tokens)
                record.request = None
            if output.finish_reason is not None:
                self._ledger.leave(record, connection)
                ended = True
        if records and not ended:
            connection.roll.note(records)
        return _LookedUp(records, outputs, queued, names)

    def _name(self, connection: Connection, names: dict[str, str], internal_id: str) -> str:
        record = connection.requests.get(internal_id)
        if record is not None and record.sink is None:
            return record.request_id
        return names.get(internal_id, "")

    def _reply(self, connection: Connection, reply: UtilityOutput) -> None:
        call = connection.calls.get(reply.call_id)
        if call is None:
            return
        error = None
        if reply.failure_message is not None:
            error = UtilityError(reply.failure_message, engine=self._fleet.rank(connection))
        value = reply.result.value if reply.result is not None else None
        self._ledger.end_call(call, connection, value, error)

    def _unreadable(
        self, connection: Connection, frames: list[Frame], reason: str, now: float
    ) -> None:
        """End what an unreadable message concerns; all that the engine has if nobody knows."""
        self.unreadable += 1
        known = concerned(frames[0])
        if known is None:
            self._lose(connection, list(connection.requests.values()),
                       f"a message could not be read ({reason})", now)  # fmt: skip
            self._lose_calls(connection, "a message could not be read")
            return
        error = ProtocolMismatchError(
            f"an output of the engine could not be read: {reason}",
            engine=self._fleet.rank(connection),
        )
        named = [connection.requests.get(name) for name in known.request_ids]
        records = [record for record in named if record is not None]
        self.cancel(connection, [record.internal_id for record in records])
        self._ledger.fail_and_report(records, connection, error, now)
        call = None if known.call_id is None else connection.calls.get(known.call_id)
        if call is not None:
            self._ledger.end_call(call, connection, None, error)
