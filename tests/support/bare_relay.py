"""The least a relay can do with pyzmq: take a message off a PULL and send it to the one client.

The floor of the relay's benchmark: the same socket calls as the engine server's, on sockets of the
same kinds, but nothing is read, booked or watched. Prints the address for its client, waits for
that client's first message, then relays until it is killed.

    python tests/support/bare_relay.py ipc:///tmp/x/outputs
"""

import sys
from collections.abc import Sequence

import zmq

BURST = 64
NOW = int(zmq.NOBLOCK)
NOT_LAST = int(zmq.NOBLOCK | zmq.SNDMORE)


def relay(outputs: "zmq.Socket[bytes]", clients: "zmq.Socket[bytes]", identity: bytes) -> None:
    """Pass on what is there."""
    receive, send = outputs.recv, super(zmq.Socket, clients).send
    for _ in range(BURST):
        try:
            frame = receive(NOW, False)
        except zmq.Again:
            return
        body = frame.bytes
        send(identity, NOT_LAST)
        send(body, NOW)


def main(arguments: Sequence[str]) -> None:
    """Bind, and relay for ever."""
    (address,) = arguments
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    outputs, clients = context.socket(zmq.PULL), context.socket(zmq.ROUTER)
    outputs.set(zmq.RCVHWM, 0)
    clients.set(zmq.SNDHWM, 0)
    outputs.bind(address)
    clients.bind("tcp://127.0.0.1:0")
    sys.stdout.write(f"{clients.getsockopt_string(zmq.LAST_ENDPOINT)}\n")
    sys.stdout.flush()
    identity = clients.recv_multipart()[0]
    while outputs.poll():
        relay(outputs, clients, identity)


if __name__ == "__main__":
    main(sys.argv[1:])
