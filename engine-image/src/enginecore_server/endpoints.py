"""The HTTP face of the server: probes, status, metrics, drain."""

import hmac
import socket as sockets
from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from enginecore_server.binding import PORT_REMEDY, BindError
from enginecore_server.phases import ENDED
from enginecore_wire.contract import (
    DRAIN_PATH,
    HEALTH_PATH,
    METRICS_PATH,
    READY_PATH,
    STATUS_PATH,
    ServerStatus,
)
from enginecore_wire.control import Phase

_BACKLOG: Final = 128


class Endpoints:
    """Answers HTTP requests from the server's state.

    Args:
        status: gives the status document.
        drain: starts a drain; returns False in a phase that has nothing to drain.
        registry: what /metrics shows.
        drain_token: the bearer token of POST /drain; empty refuses every drain.
    """

    def __init__(
        self,
        status: Callable[[], ServerStatus],
        drain: Callable[[], bool],
        registry: CollectorRegistry,
        drain_token: str,
    ) -> None:
        self._status = status
        self._drain = drain
        self._registry = registry
        self._drain_token = drain_token
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port.

        Raises:
            BindError: the address is taken or not this host's.
        """
        listener = _listen(host, port)
        application = web.Application()
        application.add_routes(
            [
                web.get(HEALTH_PATH, self._health),
                web.get(READY_PATH, self._ready),
                web.get(STATUS_PATH, self._show_status),
                web.get(METRICS_PATH, self._metrics),
                web.post(DRAIN_PATH, self._start_drain),
            ]
        )
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        await web.SockSite(self._runner, listener, backlog=_BACKLOG).start()
        bound: int = listener.getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Close the listener and its connections."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, _request: web.Request) -> web.Response:
        status = self._status()
        return _verdict(status, status.phase not in ENDED)

    async def _ready(self, _request: web.Request) -> web.Response:
        status = self._status()
        return _verdict(status, status.phase == Phase.READY)

    async def _show_status(self, _request: web.Request) -> web.Response:
        body = msgspec.json.encode(self._status())
        return web.Response(body=body, content_type="application/json")

    async def _metrics(self, _request: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _start_drain(self, request: web.Request) -> web.Response:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        allowed = self._drain_token and scheme.lower() == "bearer"
        if not allowed or not hmac.compare_digest(_bytes(token), _bytes(self._drain_token)):
            return web.Response(
                status=401,
                text="draining needs the operator's bearer token\n",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if not self._drain():
            return web.Response(status=409, text=f"nothing to drain: {self._status().phase}\n")
        return web.Response(status=202, text="draining\n")


def _bytes(token: str) -> bytes:
    """Return a header's or variable's bytes, which need not be text."""
    return token.encode(errors="surrogateescape")


def _verdict(status: ServerStatus, good: bool) -> web.Response:
    text = f"{status.phase} {status.reason}".rstrip() + "\n"
    return web.Response(status=200 if good else 503, text=text)


def _listen(host: str, port: int) -> sockets.socket:
    every = host in ("*", "")
    six = (":" in host) or (every and sockets.has_dualstack_ipv6())
    try:
        return sockets.create_server(
            ("" if every else host, port),
            family=sockets.AF_INET6 if six else sockets.AF_INET,
            backlog=_BACKLOG,
            dualstack_ipv6=every and six,
        )
    except OSError as error:
        raise BindError(
            f"transport.http_port: port {port} on {host}: {error.strerror}; {PORT_REMEDY}"
        ) from error
