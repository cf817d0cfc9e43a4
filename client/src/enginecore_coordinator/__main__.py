"""`python -m enginecore_coordinator`: runs until SIGTERM or SIGINT, then exits 0."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import zmq
from aiohttp import web
from prometheus_client import CollectorRegistry

from enginecore_coordinator.addresses import is_address
from enginecore_coordinator.guard import Guard
from enginecore_coordinator.http import build_app, build_status
from enginecore_coordinator.loads import LoadBook
from enginecore_coordinator.metrics import CoordinatorMetrics, LoadCollector
from enginecore_coordinator.service import Coordinator
from enginecore_curve.keys import KeyFileError
from enginecore_wire.contract import HTTP_PORT, PUBLISH_PORT, REPORT_PORT

logger = logging.getLogger("enginecore_coordinator")

ENV_PREFIX = "ENGINECORE_COORDINATOR_"
MAX_RANKS = 1024


def parse_settings(argv: Sequence[str], env: Mapping[str, str]) -> argparse.Namespace:
    """Return the settings; an option wins over its variable ENGINECORE_COORDINATOR_<OPTION>.

    Raises:
        SystemExit: an option is unknown or out of range (status 2, the reason on stderr).
    """
    parser = argparse.ArgumentParser(
        prog="enginecore-coordinator",
        description="Collects the load of a cluster's engines and publishes it to clients.",
        epilog=f"Every option can be given as a variable, such as {ENV_PREFIX}MAX_RANKS.",
    )

    def option(name: str, default: object, kind: type, text: str) -> None:
        variable = ENV_PREFIX + name.replace("-", "_").upper()
        parser.add_argument(
            f"--{name}", default=env.get(variable, str(default)), type=kind, help=text
        )

    option("report-address", f"tcp://*:{REPORT_PORT}", str, "where engine servers push reports")
    option("publish-address", f"tcp://*:{PUBLISH_PORT}", str, "where clients subscribe")
    option("http-host", "", str, "host of the HTTP endpoints; empty: every interface")
    option("http-port", HTTP_PORT, int, "port of the HTTP endpoints; 0: a free one")
    option("max-ranks", MAX_RANKS, int, "ranks from this one on are refused")
    option("secret-key-file", "", str, "has the secret key for CURVE; empty: no encryption")
    option("clients-directory", "", str, "has files infer, admin and server of public keys")
    settings = parser.parse_args(argv)
    for name in ("report_address", "publish_address"):
        if not is_address(getattr(settings, name)):
            parser.error(
                f"--{name.replace('_', '-')} {getattr(settings, name)}: give tcp://host:port with "
                "a port from 1 to 65535, or * for a free one"
            )
    if not 0 <= settings.http_port <= 65535:
        parser.error(f"--http-port {settings.http_port}: give a port from 0 to 65535")
    if not 1 <= settings.max_ranks <= 65536:
        parser.error(f"--max-ranks {settings.max_ranks}: give a number from 1 to 65536")
    if bool(settings.secret_key_file) != bool(settings.clients_directory):
        parser.error("--secret-key-file and --clients-directory: give both, or none of them")
    return settings


async def serve(settings: argparse.Namespace) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        zmq.ZMQError, OSError: an address cannot be bound.
        KeyFileError: a key cannot be used.
    """
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopped.set)
    registry = CollectorRegistry()
    metrics = CoordinatorMetrics(registry)
    book = LoadBook(settings.max_ranks, loop.time())
    registry.register(LoadCollector(book, loop.time))
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        guard = None
        if settings.secret_key_file:
            guard = Guard(
                context,
                settings.secret_key_file,
                settings.clients_directory,
                lambda purpose: metrics.refused_connections.labels(purpose).inc(),
            )
            stack.callback(guard.close)
        coordinator = Coordinator(
            book,
            metrics,
            context,
            settings.report_address,
            settings.publish_address,
            None if guard is None else guard.pair,
        )
        addresses = coordinator.report_address, coordinator.publish_address
        app = build_app(registry, lambda: build_status(book, *addresses, loop.time()))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        try:
            await runner.setup()
            site = web.TCPSite(runner, settings.http_host or None, settings.http_port)
            await site.start()
            logger.info("reports on %s, publishes on %s, http on %s", *addresses, runner.addresses)
            await stopped.wait()
        finally:
            await runner.cleanup()
            coordinator.close()
    logger.info("stopped")


def main() -> int:
    """Run the command line; returns the exit status."""
    level = os.environ.get("LOG_LEVEL", "INFO").upper()
    known = level in logging.getLevelNamesMapping()
    logging.basicConfig(
        level=level if known else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    if not known:
        logger.warning("LOG_LEVEL %r is no level; the log shows INFO", level)
    settings = parse_settings(sys.argv[1:], os.environ)
    try:
        asyncio.run(serve(settings))
    except KeyFileError as error:
        logger.error("%s; check --secret-key-file and --clients-directory", error)
        return 1
    except (zmq.ZMQError, OSError) as error:
        logger.error(
            "cannot listen: %s; check --report-address %s, --publish-address %s, --http-port %d",
            error,
            settings.report_address,
            settings.publish_address,
            settings.http_port,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
