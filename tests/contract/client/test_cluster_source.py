"""Addresses followed by a watch, against an HTTP server that speaks the API server's part."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes import client as kubernetes_client

from enginecore_client import (
    AddressError,
    AsyncMPClient,
    ClientClosedError,
    ClusterSource,
    RequestRejectedError,
    ScalingNotAvailable,
    StartupTimeoutError,
    SyncMPClient,
)
from enginecore_client._addresses.cluster import ABSENT_SECONDS
from support.eventually import eventually, eventually_async
from support.faces import params
from support.protocol_peer import ProtocolPeer

PROMPT = [7, 11, 13]
PARAMS = params(3)


class ApiServer:
    """Lists and watches one EngineCluster."""

    def __init__(self) -> None:
        self.cluster: dict[str, Any] | None = None
        self.exposed: dict[str, Any] | None = None
        self.version = 1
        self.status_code = 200
        self.scale_code = 200
        self.list_code = 200
        self.others: list[str] = []
        self.requests: list[dict[str, list[str]]] = []
        self.scales: list[Any] = []
        self.changed = threading.Condition()
        self.stopping = False
        self.api_clients: list[Any] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.answer(self)

            def do_PATCH(self) -> None:
                outer.scale(self)

            def log_message(self, *arguments: Any) -> None:
                """Stay quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def api_client(self) -> Any:
        configuration = kubernetes_client.Configuration()
        configuration.host = f"http://127.0.0.1:{self.server.server_port}"
        configuration.retries = False
        self.api_clients.append(kubernetes_client.ApiClient(configuration))
        return self.api_clients[-1]

    def set(self, addresses: dict[str, Any] | None) -> None:
        with self.changed:
            self.version += 1
            self.cluster = None if addresses is None else self.object(addresses)
            self.changed.notify_all()

    def object(self, addresses: dict[str, Any]) -> dict[str, Any]:
        metadata = {"name": "smollm", "resourceVersion": str(self.version)}
        status = {"clientAddresses": addresses}
        if self.exposed is not None:
            status["exposedAddresses"] = self.exposed
        return {"metadata": metadata, "status": status}

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        assert url.path == "/apis/enginecore.dev/v1alpha1/namespaces/prod/engineclusters"
        query = parse_qs(url.query)
        self.requests.append(query)
        everything = "fieldSelector" not in query
        assert everything or query["fieldSelector"] == ["metadata.name=smollm"]
        handler.send_response(self.list_code if everything else self.status_code)
        handler.send_header("Content-Type", "application/json")
        if "watch" not in query:
            items = [] if self.cluster is None else [self.cluster]
            if everything:
                items = [{"metadata": {"name": name}} for name in self.others]
            body = {"metadata": {"resourceVersion": str(self.version)}, "items": items}
            text = json.dumps(body).encode()
            handler.send_header("Content-Length", str(len(text)))
            handler.end_headers()
            handler.wfile.write(text)
            return
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        self.watch(handler, int(query["resourceVersion"][0]))

    def scale(self, handler: BaseHTTPRequestHandler) -> None:
        assert handler.path == (
            "/apis/enginecore.dev/v1alpha1/namespaces/prod/engineclusters/smollm/scale"
        )
        assert handler.headers["Content-Type"] == "application/merge-patch+json"
        self.scales.append(json.loads(handler.rfile.read(int(handler.headers["Content-Length"]))))
        message = {"message": "spec.replicas: must be absent when autoscaling is set"}
        text = json.dumps(message if self.scale_code == 422 else {}).encode()
        handler.send_response(self.scale_code)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def watch(self, handler: BaseHTTPRequestHandler, version: int) -> None:
        while True:
            with self.changed:
                while self.version == version and not self.stopping:
                    self.changed.wait(30)
                if self.stopping:
                    handler.close_connection = True
                    return
                version = self.version
                kind = "MODIFIED" if self.cluster else "DELETED"
                event = {"type": kind, "object": self.cluster or {}}
            line = json.dumps(event).encode() + b"\n"
            try:
                for part in (line[:10], line[10:]):
                    handler.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            except OSError:
                return

    def close(self) -> None:
        with self.changed:
            self.stopping = True
            self.changed.notify_all()
        for api_client in self.api_clients:
            api_client.rest_client.pool_manager.clear()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    yield server
    server.close()


async def test_client_follows_the_status(api: ApiServer) -> None:
    with ProtocolPeer(0) as one, ProtocolPeer(1) as two:
        api.set(one.addresses)
        source = ClusterSource("smollm", "prod", api.api_client())
        async with AsyncMPClient(source, ready_timeout=20) as client:
            assert len([o async for o in client.generate(PROMPT, PARAMS)]) == 3
            await eventually_async(lambda: any("watch" in query for query in api.requests))
            api.set(two.addresses)
            await eventually_async(lambda: len(two.hellos) == 2, "the watch told of rank 1")
            await eventually_async(lambda: one.byes == 1)
            await eventually_async(client._driver.core.all_ready)
            assert len([o async for o in client.generate(PROMPT, PARAMS)]) == 3
            assert len(two.adds) == 1
            api.set(None)
            await eventually_async(lambda: not client._driver.core._fleet.working())
        assert source.problem.startswith(("it was deleted", "it does not exist"))


async def test_a_client_outside_takes_the_exposed_addresses(api: ApiServer) -> None:
    with ProtocolPeer(0) as inside, ProtocolPeer(0) as outside:
        api.exposed = outside.addresses
        api.set(inside.addresses)
        source = ClusterSource("smollm", "prod", api.api_client(), exposed=True)
        async with AsyncMPClient(source, ready_timeout=20) as client:
            assert len([o async for o in client.generate(PROMPT, PARAMS)]) == 3
            assert (len(outside.adds), inside.hellos) == (1, [])
            await eventually_async(lambda: any("watch" in query for query in api.requests))
            api.exposed = None
            api.set(inside.addresses)
            await eventually_async(lambda: "spec.transport.expose" in source.describe())


@pytest.mark.parametrize(
    ("code", "addresses", "problem"),
    [
        (200, None, "it does not exist, and namespace prod has no EngineCluster at all"),
        (404, {}, "the API server knows no engineclusters; install the chart"),
        (200, {}, "no clientAddresses yet"),
        (403, {}, "forbidden: this account may not"),
        (500, {}, "the API server does not answer: 500"),
    ],
)
async def test_problems_are_in_the_startup_error(api, code, addresses, problem) -> None:
    api.status_code = code
    if addresses is not None:
        api.set(addresses)
    source = ClusterSource("smollm", "prod", api.api_client())
    client = AsyncMPClient(source, ready_timeout=2)
    with pytest.raises(StartupTimeoutError, match=f"EngineCluster prod/smollm.*{problem}"):
        await client.connect()


@pytest.mark.parametrize(
    ("code", "others", "words"),
    [
        (200, ["second", "first"], "does not exist; namespace prod has first, second$"),
        (403, ["second"], "does not exist$"),
    ],
)
def test_a_cluster_that_does_not_exist_is_not_waited_for(api, code, others, words) -> None:
    api.list_code, api.others = code, others
    started = time.monotonic()
    with pytest.raises(AddressError, match=f"EngineCluster prod/smollm: it {words}"):
        SyncMPClient(ClusterSource("smollm", "prod", api.api_client()), engine_ranks=[0])
    assert ABSENT_SECONDS <= time.monotonic() - started < 60


async def test_a_cluster_that_comes_late_is_found(api: ApiServer) -> None:
    with ProtocolPeer(0) as peer:
        client = AsyncMPClient(ClusterSource("smollm", "prod", api.api_client()), ready_timeout=20)
        await eventually_async(lambda: "does not exist" in client._driver.source.describe())
        api.set(peer.addresses)
        async with client:
            assert len([o async for o in client.generate(PROMPT, PARAMS)]) == 3


@pytest.mark.parametrize("ranks", [None, [0]])
async def test_scaling_writes_the_scale_of_the_cluster(api: ApiServer, ranks: Any) -> None:
    with ProtocolPeer(0) as peer:
        api.set(peer.addresses)
        source = ClusterSource("smollm", "prod", api.api_client())
        async with AsyncMPClient(source, ready_timeout=20, engine_ranks=ranks) as client:
            await client.scale_elastic_ep(3)
            assert api.scales == [{"spec": {"replicas": 3}}]
            for wrong in (-1, "3", True, None):
                with pytest.raises(RequestRejectedError) as refused:
                    client.scale_elastic_ep(wrong)
                assert refused.value.field == "new_data_parallel_size"
            for api.scale_code, words in (
                (403, "may not patch engineclusters/scale"),
                (404, "it does not exist"),
                (422, "must be absent when autoscaling is set"),
                (500, "does not answer: 500"),
            ):
                with pytest.raises(ScalingNotAvailable, match=words):
                    await client.scale_elastic_ep(2)


def test_scaling_with_a_client_that_blocks(api: ApiServer) -> None:
    with ProtocolPeer(0) as peer:
        api.set(peer.addresses)
        source = ClusterSource("smollm", "prod", api.api_client())
        with SyncMPClient(source, ready_timeout=20) as client:
            client.scale_elastic_ep(0)
            assert api.scales == [{"spec": {"replicas": 0}}]
        with pytest.raises(ClientClosedError):
            client.scale_elastic_ep(1)


def test_closing_ends_a_watch_at_once(api: ApiServer) -> None:
    api.set({"input_address": [], "output_address": []})
    source = ClusterSource("smollm", "prod", api.api_client())
    source.start(lambda: None)
    eventually(lambda: any("watch" in query for query in api.requests), "watching")
    eventually(lambda: source.problem == "")
    started = time.monotonic()
    source.close()
    assert time.monotonic() - started < 4
    assert not source._thread.is_alive()
