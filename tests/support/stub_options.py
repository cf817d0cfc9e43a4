"""Command line of the stub engine (stub_engine.py, which is run as a script beside this file)."""

import argparse
from collections.abc import Sequence

from enginecore_client.testing.fake_process import add_arguments


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options; an unknown one ends the process with status 2."""
    parser = argparse.ArgumentParser(description="A fast engine without a model.")
    add_arguments(parser)
    parser.set_defaults(tokens=8, stats=False)
    parser.add_argument("model", nargs="?", default="stub", help="ignored")
    parser.add_argument("--payload-bytes", type=int, default=0, help="padding per output")
    parser.add_argument("--steps", type=int, default=1, help="steps between looks at the input")
    parser.add_argument("--threads", action="store_true", help="vLLM's three threads")
    parser.add_argument("--enable-prompt-embeds", action="store_true", help="take embeddings and "
                        "return them with the first token, and their CRC-32")  # fmt: skip
    parser.add_argument("--launcher", action="store_true", help="run as a child of a launcher")
    parser.add_argument("--workers", type=int, default=0, help="processes below the engine")
    parser.add_argument("--print-environment", help="print this variable's value as JSON")
    return parser.parse_args(arguments)
