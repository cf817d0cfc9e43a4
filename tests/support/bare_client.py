"""A process that reads an engine's outputs and does nothing with them: how fast the engine is.

    python bare_client.py INPUT_ADDRESS OUTPUT_ADDRESS

Takes `Flood` as stream_clients.py does.
"""

import os
import sys
from collections.abc import Sequence

import msgspec
import zmq

from enginecore_wire.codec import MsgpackEncoder
from enginecore_wire.requests import EngineCoreRequest, RequestType, SamplingParams
from support.stream_commands import Flood, Took, Watch, read_command


class BareClient:
    """A ROUTER and a PULL."""

    def __init__(self, input_address: str, output_address: str) -> None:
        context = zmq.Context(io_threads=2)
        self._input = context.socket(zmq.ROUTER)
        self._output = context.socket(zmq.PULL)
        for socket, address in ((self._input, input_address), (self._output, output_address)):
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.setsockopt(zmq.SNDHWM, 0)  # a ROUTER drops what is above it
            socket.bind(address)
        self._encoder = MsgpackEncoder()
        self._engine = self._input.recv_multipart()[0]

    def flood(self, command: Flood) -> Took:
        """Read a flood's messages."""
        for number in range(command.streams):
            if number == command.streams - 1:
                watch = Watch()
            self._send(f"bare-{number}", command)
        for _ in range(command.tokens):
            self._output.recv(copy=False)
        return watch.took()

    def _send(self, name: str, command: Flood) -> None:
        request = EngineCoreRequest(
            name, [1], sampling_params=SamplingParams(max_tokens=command.tokens),
            cache_salt=f"flood:{command.streams}:0",
        )  # fmt: skip
        frames = self._encoder.encode(request)
        self._input.send_multipart([self._engine, RequestType.ADD, *frames])


def main(arguments: Sequence[str]) -> None:
    """Run the command line."""
    client = BareClient(*arguments)
    os.write(1, b"ready\n")
    while (command := read_command()) is not None:
        assert isinstance(command, Flood)
        os.write(1, msgspec.json.encode(client.flood(command)) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
