"""A way to an API server that can fall silent: connections stay open, nothing passes any more."""

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from devcluster.handle import ClusterHandle

BUFFER_BYTES = 65536
EVERYTHING = b""
WATCHES = b"watch=true"


class _Link:
    """One connection of a client; `request` is the line of the latest request on it."""

    def __init__(self) -> None:
        self.request = b""
        self.passing = asyncio.Event()
        self.passing.set()


class ApiRelay:
    """Passes TLS connections on to an API server, under that server's own certificate.

    Args:
        upstream: host and port of the API server.
        keys: directory with its certificate, its key and the authority's certificate.
    """

    def __init__(self, upstream: tuple[str, int], keys: Path) -> None:
        self._upstream = upstream
        self._server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._server_side.load_cert_chain(keys / "apiserver.crt", keys / "apiserver.key")
        self._client_side = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        self._links: set[_Link] = set()
        self._silenced: bytes | None = None
        self._loop = asyncio.new_event_loop()
        self.port = 0

    def silence(self, requests: bytes = EVERYTHING) -> None:
        """Let nothing pass any more of requests whose first line has these bytes in it."""
        self._call(lambda: self._set(requests))

    def speak(self) -> None:
        """Let everything pass again, what was held back first."""
        self._call(lambda: self._set(None))

    def run(self, listening: threading.Event) -> None:
        """Serve until `stop`."""
        self._loop.run_until_complete(self._serve(listening))
        self._loop.close()

    def stop(self) -> None:
        """End; connections are cut."""
        self._loop.call_soon_threadsafe(self._stopped.set)

    def _call(self, work: Callable[[], None]) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (work(), done.set()))
        assert done.wait(10)

    def _set(self, requests: bytes | None) -> None:
        self._silenced = requests
        for link in self._links:
            self._judge(link)

    def _judge(self, link: _Link) -> None:
        if self._silenced is not None and self._silenced in link.request:
            link.passing.clear()
        else:
            link.passing.set()

    async def _serve(self, listening: threading.Event) -> None:
        self._stopped = asyncio.Event()
        server = await asyncio.start_server(
            self._relay, "127.0.0.1", 0, ssl=self._server_side, limit=BUFFER_BYTES
        )
        self.port = server.sockets[0].getsockname()[1]
        listening.set()
        await self._stopped.wait()
        server.close()
        relays = asyncio.all_tasks() - {asyncio.current_task()}
        for task in relays:
            task.cancel()
        await asyncio.gather(*relays, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link()
        self._links.add(link)
        host, port = self._upstream
        try:
            up_reader, up_writer = await asyncio.open_connection(host, port, ssl=self._client_side)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pump(link, reader, up_writer, requests=True))
                    group.create_task(self._pump(link, up_reader, writer, requests=False))
            finally:
                up_writer.transport.abort()
        except* (OSError, ssl.SSLError):
            pass
        finally:
            writer.transport.abort()
            self._links.discard(link)

    async def _pump(
        self,
        link: _Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        requests: bool,
    ) -> None:
        while data := await reader.read(BUFFER_BYTES):
            line = data.partition(b"\r\n")[0]
            if requests and b" HTTP/1.1" in line:
                link.request = line
                self._judge(link)
            await link.passing.wait()
            writer.write(data)
            await writer.drain()
        await link.passing.wait()
        raise ConnectionError("one end closed")


@contextmanager
def api_relay(cluster: ClusterHandle) -> Iterator[ApiRelay]:
    """Run a relay to a cluster's API server while the block lasts."""
    view = json.loads(cluster.kubeconfig.read_text())
    server = urlsplit(view["clusters"][0]["cluster"]["server"])
    assert server.hostname is not None
    assert server.port is not None
    relay = ApiRelay((server.hostname, server.port), cluster.directory.pki)
    listening = threading.Event()
    thread = threading.Thread(target=relay.run, args=(listening,), name="api relay")
    thread.start()
    try:
        assert listening.wait(10)
        yield relay
    finally:
        with suppress(RuntimeError):
            relay.stop()
        thread.join(10)


def through(relay: ApiRelay, kubeconfig: Path, directory: Path) -> Path:
    """Write a copy of a kubeconfig whose server is reached over the relay; return its path."""
    view = json.loads(kubeconfig.read_text())
    for entry in view["clusters"]:
        entry["cluster"]["server"] = f"https://127.0.0.1:{relay.port}"
    path = directory / "relayed.kubeconfig"
    path.write_text(json.dumps(view))
    path.chmod(0o600)
    return path
