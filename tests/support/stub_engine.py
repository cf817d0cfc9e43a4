"""The fake engine of enginecore_client.testing, and what only this project's tests ask of it.

Runs as a process of its own, as an engine does:

    python tests/support/stub_engine.py --data-parallel-address 127.0.0.1 \\
        --data-parallel-rpc-port 29550 --tokens 8 --payload-bytes 300

With --threads input, loop and output have one thread each, joined by queues, as in vLLM; one
thread that does everything is faster.
"""

import argparse
import json
import os
import queue
import sys
import threading
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
from stub_launcher import launch
from stub_options import parse
from stub_workers import workers

from enginecore_client.testing.fake_core import FakeEngineCore, Running
from enginecore_client.testing.fake_links import NOBODY, FakeLinks
from enginecore_client.testing.fake_loop import LOG, FakeLoop
from enginecore_client.testing.fake_process import log_to_output, run, settings_of
from enginecore_wire.outputs import EngineCoreOutput, EngineCoreOutputs, FinishReason

ANY_WIDTH = 1


class StubCore(FakeEngineCore):
    """Pads its outputs, and returns the embeddings of a prompt with the first token."""

    def __init__(self, options: argparse.Namespace) -> None:
        settings = settings_of(options)
        if options.enable_prompt_embeds:
            settings = msgspec.structs.replace(settings, hidden_size=ANY_WIDTH)
        super().__init__(settings)
        self.settings = msgspec.structs.replace(settings, stats=options.stats)
        self._padding = {"padding": "x" * options.payload_bytes} if options.payload_bytes else None

    def output_of(
        self, entry: Running, token: int, reason: FinishReason | None
    ) -> EngineCoreOutput:
        output = super().output_of(entry, token, reason)
        if self._padding is not None:
            output.trace_headers = self._padding
        embeds = entry.request.prompt_embeds
        if embeds is not None and entry.position == 1:
            output.routed_experts = embeds
            output.trace_headers = {"crc32": str(zlib.crc32(embeds.data))}
        return output


class StubLoop(FakeLoop):
    """Looks at its input only after several steps, and may have vLLM's three threads."""

    def __init__(self, core: FakeEngineCore, links: FakeLinks, options: argparse.Namespace) -> None:
        super().__init__(core, links)
        self._steps = options.steps
        self._arrived: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
        self._departing: queue.SimpleQueue[tuple[int, EngineCoreOutputs] | None] = (
            queue.SimpleQueue()
        )
        self._threads = [
            threading.Thread(target=target, name=target.__name__)
            for target in (self._pump_input, self._pump_output)
            if options.threads
        ]

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        try:
            super().run()
        finally:
            self.stopping = True
            self.links.wake()
            self._departing.put(None)
            for thread in self._threads:
                thread.join()

    def receive(self, seconds: float) -> None:
        if not self._threads:
            super().receive(seconds)
            return
        try:
            self.take(self._arrived.get(timeout=seconds))
            while True:
                self.take(self._arrived.get_nowait())
        except queue.Empty:
            return

    def compute(self) -> None:
        for _ in range(self._steps):
            super().compute()

    def deliver(self, client: int, outputs: EngineCoreOutputs) -> None:
        if self._threads:
            self._departing.put((client, outputs))
        else:
            super().deliver(client, outputs)

    def _pump_input(self) -> None:
        while not self.stopping:
            for source, frames in self.links.receive(None):
                if source != NOBODY:
                    self._arrived.put(frames)

    def _pump_output(self) -> None:
        while (departing := self._departing.get()) is not None:
            self.links.send(*departing)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    if options.launcher:
        rest = [item for item in arguments if item != "--launcher"]
        return launch([sys.executable, __file__, *rest])
    log_to_output("stub")
    if options.print_environment:
        LOG.info("%s", json.dumps(os.environ.get(options.print_environment)))

    def make_loop(core: FakeEngineCore, links: FakeLinks) -> Any:
        return StubLoop(core, links, options)

    with workers(options.workers):
        return run(options, StubCore(options), make_loop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
