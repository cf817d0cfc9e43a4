"""`python -m enginecore_client.testing.fake_process …`: a fake engine as a process of its own.

It dials vLLM's start-up handshake as an engine does, and ends on SIGTERM. A client steers it with
`collective_rpc`: `echo(value)` returns the value, `journal` all that came so far; `die` ends it
as SIGKILL would, `dead` breaks its loop, `hang` stops it for good, `mute` lets it compute on and
send nothing, and `stats` has it attach stats.
"""

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

from enginecore_client.testing.fake_core import DEFAULT_SETTINGS, FakeEngineCore, FakeSettings
from enginecore_client.testing.fake_links import FakeLinks
from enginecore_client.testing.fake_loop import LOG, FakeLoop, serve

LOAD_LOG_SECONDS = 0.1

MakeLoop = Callable[[FakeEngineCore, FakeLinks], FakeLoop]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a fake engine's process."""
    add = parser.add_argument
    add("--data-parallel-address", default="127.0.0.1", help="where the handshake is")
    add("--data-parallel-rpc-port", type=int, required=True)
    add("--rank", "--data-parallel-rank", type=int, default=0)
    add("--local", action="store_true", help="say that it was launched here")
    add("--max-model-len", type=int, default=DEFAULT_SETTINGS.max_model_len)
    add("--max-num-seqs", type=int, default=DEFAULT_SETTINGS.max_num_seqs)
    add("--vocab-size", type=int, default=DEFAULT_SETTINGS.vocab_size)
    add("--hidden-size", type=int, default=0, help="width of prompt embeddings it takes")
    add("--tokens", type=int, help="most tokens per request")
    add("--token-seconds", type=float, default=0.0, help="time of one step")
    add("--stats", action=argparse.BooleanOptionalAction, default=True,
        help="attach scheduler stats")  # fmt: skip
    add("--ignore", action="store_true", help="take requests, answer none")
    add("--load-seconds", type=float, default=0.0)
    add("--load-log", action="store_true", help="log while loading")
    add("--fail", choices=["start", "load", "stall"], help="where to fail")


def settings_of(options: argparse.Namespace) -> FakeSettings:
    """Return what the options say of the engine."""
    return FakeSettings(
        max_model_len=options.max_model_len,
        vocab_size=options.vocab_size,
        max_num_seqs=options.max_num_seqs,
        hidden_size=options.hidden_size,
        tokens=options.tokens,
        token_seconds=options.token_seconds,
        load_seconds=options.load_seconds,
        stats=options.stats,
        keep_requests=False,
    )


def run(options: argparse.Namespace, core: FakeEngineCore, make_loop: MakeLoop = FakeLoop) -> int:
    """Run an engine until SIGTERM; return the exit status: 1 if it broke."""
    if options.fail == "start":
        LOG.error("refusing to start")
        return 1
    core.paused = options.ignore
    core.workers["die"] = lambda: os._exit(1)
    links = FakeLinks(options.rank)
    host = options.data_parallel_address
    place = f"[{host}]" if ":" in host else host
    LOG.info("connecting to the handshake")
    told = links.say_hello(f"tcp://{place}:{options.data_parallel_rpc_port}", local=options.local)
    assert told is not None, "nobody wakes it before it serves"
    LOG.info("%d outputs", len(told.outputs))
    _load(options)
    loop = make_loop(core, links)

    def stop(_signal: int, _frame: object) -> None:
        loop.stopping = True
        links.wake()

    links.open(told, core.settings)
    signal.signal(signal.SIGTERM, stop)
    LOG.info("ready")
    return 0 if serve(loop) is None else 1


def log_to_output(name: str) -> None:
    """Write what the engine says to standard output, with its name before each line."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format=f"{name}: %(message)s")


def main(arguments: Sequence[str]) -> int:
    """Run the engine that the arguments describe; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m enginecore_client.testing.fake_process",
        description="An engine without a model; dials vLLM's handshake.",
        allow_abbrev=False,
    )
    add_arguments(parser)
    options = parser.parse_args(arguments)
    log_to_output("fake engine")
    return run(options, FakeEngineCore(settings_of(options)))


def _load(options: argparse.Namespace) -> None:
    if options.fail == "load":
        LOG.error("cannot load the model: out of imagination")
        sys.exit(1)
    if options.fail == "stall":
        signal.pause()
    deadline = time.monotonic() + options.load_seconds
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, LOAD_LOG_SECONDS))
        if options.load_log:
            LOG.info("loading, %.1f s to go", left)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
