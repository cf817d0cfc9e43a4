"""`python -m enginecore_server`: serve one engine until it dies or is asked to stop.

Exit codes: 0 stopped as asked, 1 the engine is lost, 2 the settings cannot be used.
"""

import argparse
import asyncio
import gc
import os
import sys
from collections.abc import Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from enginecore_curve.keys import KeyFileError
from enginecore_server import logs
from enginecore_server.binding import BindError
from enginecore_server.child import write_termination_message
from enginecore_server.config import ConfigError, load_config
from enginecore_server.engine_link import LinkError
from enginecore_server.model_facts import UnknownModelError, model_inputs
from enginecore_server.release import with_release
from enginecore_server.reports import AddressError
from enginecore_server.server import serve
from enginecore_wire.contract import LOG_FORMAT_ENV, LOG_LEVEL_ENV

EXIT_UNUSABLE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server; return the process's exit code."""
    options = _parser().parse_args(arguments)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    try:
        logs.configure(
            logs.chosen(options.log_format, os.environ, LOG_FORMAT_ENV, logs.LOG_FORMATS),
            logs.chosen(options.log_level, os.environ, LOG_LEVEL_ENV, logs.LOG_LEVELS),
        )
        config = with_release(load_config(options.config, os.environ))
        model = model_inputs(config.model, config.runtime)
        gc.freeze()
        return asyncio.run(serve(config, model, registry))
    except (
        ConfigError,
        UnknownModelError,
        BindError,
        LinkError,
        AddressError,
        KeyFileError,
    ) as error:
        text = f"enginecore-server: {error}"
        print(text, file=sys.stderr)
        write_termination_message(text.encode())
        return EXIT_UNUSABLE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="enginecore-server", description="Serve one EngineCore to many clients."
    )
    parser.add_argument("--config", metavar="FILE", help="JSON settings instead of the variable's")
    for name, allowed, variable in (
        ("--log-format", logs.LOG_FORMATS, LOG_FORMAT_ENV),
        ("--log-level", logs.LOG_LEVELS, LOG_LEVEL_ENV),
    ):
        parser.add_argument(
            name, choices=allowed, help=f"default: {variable} of the environment, or {allowed[0]}"
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
