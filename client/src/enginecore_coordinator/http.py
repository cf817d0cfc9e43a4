"""HTTP: whether the coordinator lives, what it knows, and its metrics."""

from collections.abc import Callable

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from enginecore_coordinator.loads import LoadBook
from enginecore_wire.contract import HEALTH_PATH, METRICS_PATH, STATUS_PATH


class RankStatus(msgspec.Struct, frozen=True, rename="camel"):
    """One rank as last reported, `report_age_seconds` ago; silent ranks are published as idle."""

    rank: int
    waiting: int
    running: int
    kv_usage: float
    report_age_seconds: float
    silent: bool


class CoordinatorStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The JSON document on STATUS_PATH."""

    report_address: str
    publish_address: str
    ranks: list[RankStatus]


def build_status(
    book: LoadBook, report_address: str, publish_address: str, now: float
) -> CoordinatorStatus:
    """Return what the book knows at `now`, in seconds of its own clock."""
    live = book.live(now)
    ranks = [
        RankStatus(rank, *last.load, report_age_seconds=now - last.at, silent=rank not in live)
        for rank, last in book.reports(now).items()
    ]
    return CoordinatorStatus(report_address, publish_address, ranks)


def build_app(
    registry: CollectorRegistry, status: Callable[[], CoordinatorStatus]
) -> web.Application:
    """Return the application with the three endpoints."""

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def show_status(_: web.Request) -> web.Response:
        return web.Response(
            body=msgspec.json.encode(status()), content_type="application/json", charset="utf-8"
        )

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    app = web.Application()
    app.router.add_get(HEALTH_PATH, health)
    app.router.add_get(STATUS_PATH, show_status)
    app.router.add_get(METRICS_PATH, metrics)
    return app
