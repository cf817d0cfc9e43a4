"""Command line of the stub engine (stub_engine.py, which is run as a script beside this file)."""

import argparse
from collections.abc import Sequence


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options; an unknown one ends the process with status 2."""
    parser = argparse.ArgumentParser(description="A fast engine without a model.")
    parser.add_argument("model", nargs="?", default="stub", help="ignored")
    parser.add_argument("--data-parallel-address", default="127.0.0.1")
    parser.add_argument("--data-parallel-rpc-port", type=int, required=True)
    parser.add_argument("--rank", "--data-parallel-rank", type=int, default=0)
    parser.add_argument("--local", action="store_true", help="say that it was launched here")
    parser.add_argument("--tokens", type=int, default=8, help="most tokens per request")
    parser.add_argument("--payload-bytes", type=int, default=0, help="padding per output")
    parser.add_argument("--token-seconds", type=float, default=0.0, help="time of one step")
    parser.add_argument("--steps", type=int, default=1, help="steps between looks at the input")
    parser.add_argument("--threads", action="store_true", help="vLLM's three threads")
    parser.add_argument("--load-seconds", type=float, default=0.0)
    parser.add_argument("--load-log", action="store_true", help="log while loading")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--vocab-size", type=int, default=1000)
    parser.add_argument("--enable-prompt-embeds", action="store_true", help="take embeddings and "
                        "return them with the first token, and their CRC-32")  # fmt: skip
    parser.add_argument("--stats", action="store_true", help="attach scheduler stats")
    parser.add_argument("--ignore", action="store_true", help="take requests, answer none")
    parser.add_argument("--fail", choices=["start", "load", "stall"], help="where to fail")
    parser.add_argument("--launcher", action="store_true", help="run as a child of a launcher")
    parser.add_argument("--print-environment", help="print this variable's value as JSON")
    return parser.parse_args(arguments)
