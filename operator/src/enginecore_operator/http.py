"""HTTP endpoints of the operator: /healthz, /metrics."""

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from enginecore_operator.health import Health
from enginecore_wire.contract import HEALTH_PATH, METRICS_PATH


def build_app(registry: CollectorRegistry, health: Health) -> web.Application:
    """Return the application."""

    async def show_health(_: web.Request) -> web.Response:
        problems = health.problems()
        if problems:
            return web.Response(status=503, text="\n".join(problems) + "\n")
        return web.Response(text="ok\n")

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    app = web.Application()
    app.router.add_get(HEALTH_PATH, show_health)
    app.router.add_get(METRICS_PATH, show_metrics)
    return app


async def serve_http(
    registry: CollectorRegistry, health: Health, host: str, port: int
) -> web.AppRunner:
    """Listen; the caller cleans the runner up. Raises OSError when the port is taken."""
    runner = web.AppRunner(build_app(registry, health), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, host or None, port).start()
    return runner
