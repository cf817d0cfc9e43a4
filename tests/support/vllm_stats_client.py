"""vLLM's own load-balancing front end, as far as it talks to a coordinator.

Runs in vLLM's environment: `python vllm_stats_client.py tcp://host:port ENGINES`. Its stats task is
vLLM's; engines are not there, so requests are chosen for but not sent. Prints one line of JSON each
time its view of the loads changes; for each line read it chooses an engine for a new request, says
FIRST_REQ, and prints the rank.
"""

import asyncio
import contextlib
import json
import sys
from collections import Counter
from types import SimpleNamespace

import msgspec
import zmq
import zmq.asyncio
from vllm.utils.network_utils import make_zmq_socket
from vllm.v1.engine.core_client import DPLBAsyncMPClient

FIRST_REQUESTS = "inproc://first-requests"


def front_end(address: str, engines: int) -> DPLBAsyncMPClient:
    """Return vLLM's client with what its stats task and its choice of an engine need."""
    client = object.__new__(DPLBAsyncMPClient)
    client.ctx = zmq.asyncio.Context()
    client.resources = SimpleNamespace(stats_update_task=None)
    client.stats_update_address = address
    client.engine_ranks_managed = list(range(engines))
    client.core_engines = [rank.to_bytes(2, "little") for rank in range(engines)]
    client.lb_engines = [[0, 0, 0.0] for _ in range(engines)]
    client.first_req_sock_addr = FIRST_REQUESTS
    client.engines_running = False
    client.current_wave = 0
    client.client_count = 1
    client.eng_start_index = 0
    client.reqs_in_flight = {}
    client.engine_inflight = Counter()
    return client


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


async def watch(client: DPLBAsyncMPClient) -> None:
    """Print the loads whenever the stats task has set other ones."""
    seen = client.lb_engines
    while True:
        if client.lb_engines is not seen:
            seen = client.lb_engines
            say(loads=seen, wave=client.current_wave, running=client.engines_running)
        await asyncio.sleep(0.005)


async def main(address: str, engines: int) -> None:
    client = front_end(address, engines)
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    with make_zmq_socket(client.ctx, FIRST_REQUESTS, zmq.PAIR, bind=True) as first_requests:
        client._ensure_stats_update_task()
        watcher = asyncio.create_task(watch(client))
        number = 0
        while await lines.readline():
            number += 1
            request = SimpleNamespace(
                request_id=str(number), data_parallel_rank=None, pooling_params=None
            )
            engine = client.get_core_engine_for_request(request)
            await first_requests.send(msgspec.msgpack.encode(("FIRST_REQ", engine)))
            say(chosen=int.from_bytes(engine, "little"))
        for task in (watcher, client.resources.stats_update_task):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    client.ctx.term()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
