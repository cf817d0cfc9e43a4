"""An engine whose frames are made before they are wanted: it costs next to nothing to listen to.

    python scripted_engine.py HANDSHAKE_ADDRESS

It dials in as vLLM's engines do. A request says in its `cache_salt` what is done with it:

- `flood:N:S`: once N of them are there, `max_tokens` messages with an output of one token for each,
  one message every S seconds;
- `count:N:0`: nothing until N of them are there; then the last one ends, and after it the others.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from enginecore_client.testing.fake_core import FakeSettings
from enginecore_client.testing.fake_links import FakeLinks
from enginecore_wire.codec import MsgpackEncoder
from enginecore_wire.outputs import EngineCoreOutput, EngineCoreOutputs, FinishReason
from enginecore_wire.requests import RequestType

TOKEN = 31415
"""Every output's token: not one of the small integers that Python keeps."""


class _Params(msgspec.Struct):
    max_tokens: int


class _Add(msgspec.Struct, array_like=True):
    """As much of an ADD as the script needs."""

    request_id: str
    prompt_token_ids: msgspec.Raw
    mm_features: msgspec.Raw
    sampling_params: _Params
    pooling_params: msgspec.Raw
    arrival_time: msgspec.Raw
    lora_request: msgspec.Raw
    cache_salt: str


class ScriptedEngine:
    """Plays the script for any number of clients, one after another."""

    def __init__(self, links: FakeLinks) -> None:
        self._links = links
        self._decoder = msgspec.msgpack.Decoder(_Add)
        self._encoder = MsgpackEncoder()
        self._arrived: dict[tuple[int, str], list[_Add]] = {}
        self._clients: dict[Any, int] = {}

    def run(self) -> None:
        """Serve until the process is ended."""
        self._clients = {socket: index for index, socket in enumerate(self._links.inputs)}
        while True:
            for source, frames in self._links.receive(None):
                if frames[0] == RequestType.ADD:
                    self._add(self._clients[source], frames[1])

    def _add(self, client: int, body: bytes) -> None:
        add = self._decoder.decode(body)
        arrived = self._arrived.setdefault((client, add.cache_salt), [])
        arrived.append(add)
        kind, count, step = add.cache_salt.split(":")
        if len(arrived) < int(count):
            return
        del self._arrived[client, add.cache_salt]
        names = [each.request_id for each in arrived]
        if kind == "flood":
            self._flood(client, names, add.sampling_params.max_tokens, float(step))
        else:
            for ended in (names[-1:], names[:-1]):
                self._links.outputs[client].send(self._frame(ended, last=True), copy=False)

    def _flood(self, client: int, names: Sequence[str], tokens: int, seconds: float) -> None:
        send = self._links.outputs[client].send
        last = self._frame(names, last=True)
        if tokens > 1:
            step, due = self._frame(names, last=False), time.monotonic()
            for _ in range(tokens - 1):
                send(step, copy=False)
                if seconds:
                    due += seconds
                    time.sleep(max(0.0, due - time.monotonic()))
        send(last, copy=False)

    def _frame(self, names: Sequence[str], *, last: bool) -> zmq.Frame:
        reason = FinishReason.LENGTH if last else None
        outputs = [EngineCoreOutput(name, [TOKEN], finish_reason=reason) for name in names]
        message = EngineCoreOutputs(outputs=outputs, timestamp=time.monotonic())
        return zmq.Frame(self._encoder.encode(message)[0], copy=False)


def main(arguments: Sequence[str]) -> None:
    """Dial in and serve."""
    links = FakeLinks(0)
    addresses = links.say_hello(arguments[0], local=False)
    assert addresses is not None
    links.open(addresses, FakeSettings(max_model_len=32768, max_num_seqs=4096))
    ScriptedEngine(links).run()


if __name__ == "__main__":
    main(sys.argv[1:])
