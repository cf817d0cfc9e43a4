"""A fake engine's loop: messages in, steps, messages out, until it ends in one of several ways."""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from enginecore_client.testing.fake_core import FakeEngineCore, FakeEngineDiedError
from enginecore_client.testing.fake_links import NOBODY, FakeLinks
from enginecore_wire.codec import MsgpackDecoder
from enginecore_wire.outputs import EngineCoreOutputs, UtilityOutput, UtilityResult
from enginecore_wire.requests import EngineCoreRequest, RequestType, UtilityCall

LOG: Final = logging.getLogger("enginecore_client.testing")

IDLE_SECONDS: Final = 0.05
"""How soon the loop sees that a test changed something."""

STOPPING: Final = "Server shutting down"
"""vLLM's answer to calls that still wait when it ends."""


class FakeEngineVanishedError(Exception):
    """The engine ends without a word, as a process that is killed does."""


class FakeLoop:
    """Runs one engine behind its sockets.

    What breaks vLLM breaks this, too: an unreadable message or an unknown type makes it deaf, a
    client index past its outputs makes it mute, and what the core does not survive kills it.

    Args:
        core: the engine.
        links: its sockets.

    Attributes:
        stopping: the loop is to end in order; `links.wake` makes it look.
        failure: raised in the loop as soon as it looks.
        frozen: nothing is read, computed or sent.
    """

    def __init__(self, core: FakeEngineCore, links: FakeLinks) -> None:
        self.core = core
        self.links = links
        self.stopping = False
        self.failure: Exception | None = None
        self.frozen = False
        self._deaf = self._mute = False
        self._load = (0, 0)
        self._deferred: list[UtilityCall] = []
        self._pause = threading.Event()
        self._add = MsgpackDecoder(EngineCoreRequest)
        self._utility = MsgpackDecoder(UtilityCall)
        self._ids = MsgpackDecoder(list[str])
        core.workers |= {
            "dead": self._die,
            "die": self._vanish,
            "hang": self._hang,
            "mute": self._fall_silent,
            "stats": self._attach_stats,
        }

    def run(self) -> None:
        """Compute and answer until `stopping`; then end every request with ABORT.

        Raises:
            FakeEngineDiedError: the engine is dead, which its clients are to be told.
            FakeEngineVanishedError: it is gone, which nobody is to be told.
        """
        seconds = self.core.settings.token_seconds
        next_step = time.monotonic()
        while not self.stopping:
            busy = self.core.has_work()
            left = max(0.0, next_step - time.monotonic())
            self.receive(left if busy else IDLE_SECONDS)
            self._look()
            if self.core.has_work() and time.monotonic() >= next_step:
                self.compute()
                next_step = time.monotonic() + seconds
            self._report_load()
        self.core.shutdown()
        self.compute()
        for call in self._deferred:
            self._reply(call, UtilityOutput(call.call_id, STOPPING))

    def receive(self, seconds: float) -> None:
        """Handle every message that is there; wait for the first at most `seconds`."""
        if self._deaf:
            time.sleep(min(seconds, IDLE_SECONDS))
            return
        for source, frames in self.links.receive(seconds):
            if source != NOBODY and not self.take(frames):
                return

    def compute(self) -> None:
        """Compute one step and send what it has."""
        for client, message in self.core.step().items():
            if self.links.coordinated:
                ended = [o.request_id for o in message.outputs if o.finish_reason is not None]
                message.finished_requests = ended or None
            self.send(client, message)
        if self._deferred and not self.core.num_in_service:
            self._reply_deferred()

    def take(self, frames: Sequence[bytes]) -> bool:
        """Handle one message; say whether it could be read, as otherwise it is the last."""
        self._look()
        try:
            self._take(frames[0], frames[1], frames[2:])
        except (msgspec.MsgspecError, ValueError, IndexError) as error:
            LOG.error("input thread died: %s", error)
            self._deaf = True
        return not self._deaf

    def send(self, client: int, outputs: EngineCoreOutputs) -> None:
        """Send a client its outputs; after one for nobody nothing is sent any more."""
        if not 0 <= client < len(self.links.outputs):
            LOG.error("output thread died: client %d", client)
            self._mute = True
        if not self._mute:
            outputs.engine_index = self.links.rank
            outputs.timestamp = time.monotonic()
            self.deliver(client, outputs)

    def deliver(self, client: int, outputs: EngineCoreOutputs) -> None:
        """Hand outputs to the sockets."""
        self.links.send(client, outputs)

    def _look(self) -> None:
        """See what a test wants of the loop."""
        while self.frozen and not self.stopping and self.failure is None:
            self._pause.wait(IDLE_SECONDS)
        if self.failure is not None:
            raise self.failure

    def _take(self, kind: bytes, body: bytes, aux: Sequence[bytes]) -> None:
        if kind == RequestType.ADD:
            self.core.add_request(self._add.decode(body, aux))
        elif kind == RequestType.ABORT:
            self.core.abort_requests(self._ids.decode(body))
        elif kind == RequestType.UTILITY:
            self._call(self._utility.decode(body, aux))
        elif kind != RequestType.START_DP_WAVE:
            raise ValueError(f"unknown request type {kind.hex()}")

    def _call(self, call: UtilityCall) -> None:
        try:
            value = self.core.call(call.method, call.args)
        except (FakeEngineDiedError, FakeEngineVanishedError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was, this call alone failed
            text = f"Call to {call.method} method failed: {error}"
            self._reply(call, UtilityOutput(call.call_id, text))
            return
        if call.method == "pause_scheduler" and "wait" in call.args and self.core.num_in_service:
            self._deferred.append(call)
        else:
            self._reply(call, UtilityOutput(call.call_id, None, UtilityResult(None, value)))

    def _reply_deferred(self) -> None:
        """Answer the calls that waited for the requests in service to end."""
        calls, self._deferred = self._deferred, []
        for call in calls:
            self._reply(call, UtilityOutput(call.call_id, None, UtilityResult(None, None)))

    def _reply(self, call: UtilityCall, output: UtilityOutput) -> None:
        self.send(call.client_index, EngineCoreOutputs(utility_output=output))

    def _report_load(self) -> None:
        """Tell the coordinator when counts have changed."""
        load = len(self.core.waiting), len(self.core.running)
        if load != self._load and self.links.coordinated:
            self._load = load
            stats = self.core.stats()
            self.links.report(EngineCoreOutputs(self.links.rank, scheduler_stats=stats))

    def _die(self) -> None:
        raise FakeEngineDiedError("told to")

    def _vanish(self) -> None:
        raise FakeEngineVanishedError("told to")

    def _hang(self) -> None:
        self.frozen = True
        self._look()

    def _fall_silent(self) -> None:
        self._mute = True

    def _attach_stats(self) -> None:
        self.core.settings = msgspec.structs.replace(self.core.settings, stats=True)


def serve(loop: FakeLoop) -> Exception | None:
    """Run a loop to its end and close its sockets; return what it died of, None if nothing."""
    try:
        loop.run()
    except FakeEngineVanishedError as vanished:
        loop.links.close(linger=0)
        return vanished
    except Exception as error:  # noqa: BLE001 - whatever it was, clients are told
        LOG.info("fatal: %s", error)
        loop.links.say_dead()
        loop.links.close()
        return error
    loop.links.close()
    return None
