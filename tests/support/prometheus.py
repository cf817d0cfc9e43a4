"""A real Prometheus (Debian's), started for a test and asked over HTTP."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import yaml

from support.eventually import eventually

START_SECONDS = 30.0


def prometheus_program() -> Path:
    """Return Debian's prometheus; it is unpacked into the user's cache, not installed as a service.

    Raises:
        subprocess.CalledProcessError: apt-get cannot fetch the package.
    """
    installed = shutil.which("prometheus")
    if installed:
        return Path(installed)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "enginecore"
    program = cache / "prometheus/usr/bin/prometheus"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            subprocess.run(["apt-get", "--quiet", "update"], check=True, stdout=subprocess.DEVNULL)
            subprocess.run(["apt-get", "--quiet", "download", "prometheus"], check=True, cwd=work)
            (package,) = Path(work).glob("*.deb")
            subprocess.run(["dpkg-deb", "--extract", package, f"{work}/tree"], check=True)
            Path(work, "tree").replace(cache / "prometheus")
    return program


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus on the loopback interface."""

    port: int

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an instant query.

        Raises:
            AssertionError: Prometheus refuses the expression; the text says why.
        """
        status, body = self._get(f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        assert status == HTTPStatus.OK, f"{expression}: {body.decode()}"
        result: list[dict[str, Any]] = json.loads(body)["data"]["result"]
        return result

    def up(self) -> bool:
        """Tell whether it is ready to answer."""
        try:
            return self._get("/-/ready")[0] == HTTPStatus.OK
        except OSError:
            return False

    def _get(self, path: str) -> tuple[int, bytes]:
        with contextlib.closing(HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            connection.request("GET", path)
            with connection.getresponse() as reply:
                return reply.status, reply.read()


@contextlib.contextmanager
def running_prometheus(
    directory: Path, scrape_configs: Sequence[dict[str, Any]]
) -> Iterator[Prometheus]:
    """Run Prometheus while the block lasts, scraping every second.

    Args:
        directory: for its configuration and data.
        scrape_configs: as in its configuration file.
    """
    port = _free_port()
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": list(scrape_configs),
    }
    path = directory / "prometheus.yaml"
    path.write_text(yaml.safe_dump(config))
    log = directory / "prometheus.log"
    with log.open("wb") as output, subprocess.Popen(
        [prometheus_program(), f"--config.file={path}", f"--web.listen-address=127.0.0.1:{port}",
         f"--storage.tsdb.path={directory}/data"],
        stdout=output,
        stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        prometheus = Prometheus(port)

        def ready() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"Prometheus ended: {log.read_text()[-1000:]}")
            return prometheus.up()

        try:
            eventually(ready, "Prometheus is ready", START_SECONDS, 0.05)
            yield prometheus
        finally:
            process.terminate()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
