"""vLLM's own API server as a process, without engines of its own, and an HTTP client for it."""

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from devcluster.ports import free_ports
from support.eventually import eventually
from support.process import Process
from support.vllm_environment import RUN_VARIABLES

START_SECONDS = 480.0
ANSWER_SECONDS = 120.0
SERVED_NAME = "smollm2"

_SAMPLE = re.compile(r"^(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$", re.MULTILINE)


class VllmApi(Process):
    """`vllm serve` with no engine of its own: it waits for `ranks` engines to dial in.

    Args:
        python: of vLLM's environment.
        model: directory of the model and its tokenizer.
        ranks: how many engines will dial `rpc_port`; with more than one vLLM's own coordinator
            runs, too.
        options: more arguments of `vllm serve`.
    """

    def __init__(self, python: Path, model: Path, ranks: int, *options: str) -> None:
        self.ranks = ranks
        self.port, self.rpc_port = free_ports(2)
        command = [
            str(python.with_name("vllm")), "serve", str(model), "--host", "127.0.0.1",
            "--port", str(self.port), "--served-model-name", SERVED_NAME,
            "--data-parallel-size", str(ranks), "--data-parallel-size-local", "0",
            "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", str(self.rpc_port),
            *options,
        ]  # fmt: skip
        super().__init__(command, "vllm serve log", RUN_VARIABLES)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self) -> "VllmApi":
        """Return once it answers requests; whatever is raised shows the end of its log."""
        try:
            eventually(self._healthy, "vllm serve answers", deadline=START_SECONDS, interval=0.1)
        except Exception as error:
            error.add_note(self.tail())
            raise
        return self

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """Send a request to a page and return its answer."""
        with self._open(path, body) as answer:
            document: dict[str, Any] = json.loads(answer.read())
            return document

    def stream(self, path: str, **body: Any) -> Iterator[dict[str, Any]]:
        """Send a request and yield the events of its answer as they come.

        Closing the iterator closes the connection.
        """
        with self._open(path, body | {"stream": True}) as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            for line in answer:
                if line.startswith(b"data: "):
                    if line.strip() == b"data: [DONE]":
                        return
                    yield json.loads(line.removeprefix(b"data: "))
        raise AssertionError("the stream ended without [DONE]")

    def samples(self, name: str) -> dict[str, float]:
        """Return the values of a metric, by the label `engine`."""
        with self._open("/metrics") as answer:
            text = answer.read().decode()
        values: dict[str, float] = {}
        for sample in _SAMPLE.finditer(text):
            if sample["name"] == name:
                found = re.search(r'engine="(\d+)"', sample["labels"] or "")
                engine = found[1] if found else ""
                values[engine] = values.get(engine, 0.0) + float(sample["value"])
        return values

    def _open(
        self, path: str, body: dict[str, Any] | None = None, seconds: float = ANSWER_SECONDS
    ) -> Any:
        request = urllib.request.Request(  # noqa: S310 - http on loopback
            f"{self.url}{path}",
            data=None if body is None else json.dumps({"model": SERVED_NAME} | body).encode(),
            headers={"Content-Type": "application/json"},
        )
        return urllib.request.urlopen(request, timeout=seconds)  # noqa: S310 - http on loopback

    def _healthy(self) -> bool:
        self.check()
        try:
            with self._open("/health", seconds=5) as answer:
                return bool(answer.status == http.client.OK)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
