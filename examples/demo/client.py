"""Chats with every engine of an EngineCluster at once, and shows the client's own metrics.

usage: python examples/demo/client.py --cluster smollm2 [--prompt TEXT]...

Needs kubectl with access to the cluster (KUBECONFIG) and to its Secret for clients, a way to the
pods' addresses, and the model's checkpoint for its tokenizer. The client follows the
EngineCluster's status: an engine whose pod is replaced is used again under its new address, and not
waited for at the start.
"""

import argparse
import asyncio
import base64
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prometheus_client import CollectorRegistry

from enginecore_client import (
    AsyncMPClient,
    ClusterSource,
    EngineCoreError,
    SamplingParams,
    start_metrics_server,
)
from enginecore_client.text import Detokenizer, Tokenizer, read_text_async

CHECKPOINT = Path.home() / ".cache/enginecore/models/smollm2"
PROMPTS = (
    "What is the capital of France?",
    "Why is the sky blue?",
    "Write a haiku about the sea.",
    "What is 12 + 30?",
    "Name three prime numbers.",
    "Explain photosynthesis in one sentence.",
    "Who wrote Romeo and Juliet?",
    "Give me a tip for learning Python.",
)
LINE_WIDTH = 72
READY_SECONDS = 120.0
STATS_SECONDS = 10.0
SHOWN_METRICS = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "enginecore_client_requests_total",
    "enginecore_client_generation_tokens_total",
    "enginecore_client_time_to_first_token_seconds_count",
    "enginecore_client_time_to_first_token_seconds_sum",
)


@dataclass
class Answer:
    """What became of one prompt; times are seconds since the prompts were sent."""

    number: int
    prompt: str
    engine: int | None = None
    text: str = ""
    first_at: float = 0.0
    done_at: float = 0.0
    _line: str = field(default="", repr=False)

    def add(self, piece: str, now: float) -> None:
        """Take the next piece of text, and print the line once it is long enough."""
        self.first_at = self.first_at or now
        self.text += piece
        self._line += piece
        head, newline, tail = self._line.partition("\n")
        if newline:
            self._print(head)
            self._line = tail
        elif len(self._line) > LINE_WIDTH and " " in self._line:
            head, _, self._line = self._line.rpartition(" ")
            self._print(head)

    def end(self, now: float) -> None:
        """Print what is left."""
        self.done_at = now
        self._print(self._line)

    def _print(self, line: str) -> None:
        if line.strip():
            print(f"   {self.number} on engine {self.engine} │ {line.strip()}", flush=True)


def read_status(cluster: str, namespace: str) -> dict[str, Any]:
    """Return the EngineCluster's status as it is now: addresses to show, engines to wait for.

    Raises:
        SystemExit: kubectl cannot read it, or it has no addresses yet.
    """
    text = kubectl_get("enginecluster", cluster, namespace, "{.status}")
    status: dict[str, Any] = json.loads(text or "{}")
    if not status.get("readyReplicas"):
        sys.exit(f"enginecluster {cluster} has no Ready engine yet: wait until it is Available")
    return status


def write_client_key(cluster: str, namespace: str, directory: Path) -> Path:
    """Put the clients' secret key into a file, as a pod that mounts the Secret has it.

    Raises:
        SystemExit: kubectl cannot read it.
    """
    encoded = kubectl_get("secret", f"{cluster}-client", namespace, r"{.data.secret-key}")
    file = directory / "secret-key"
    file.write_bytes(base64.b64decode(encoded))
    return file


def kubectl_get(kind: str, name: str, namespace: str, path: str) -> str:
    """Return a part of an object.

    Raises:
        SystemExit: kubectl cannot read it.
    """
    command = ["kubectl", "get", kind, name, "--namespace", namespace]
    done = subprocess.run(
        [*command, "--output", f"jsonpath={path}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(refusal(command, done.stderr))
    return done.stdout


def refusal(command: Sequence[str], error: str) -> str:
    """Say why kubectl failed: its last line, and what to do where it knows of no cluster."""
    *_, last = error.strip().splitlines() or ["no output"]
    remedy = ""
    if "localhost:8080" in error:
        remedy = "\nkubectl knows of no cluster: export KUBECONFIG=FILE (make demo prints the line)"
    return f"{' '.join(command)}: {last}{remedy}"


async def ask(client: AsyncMPClient, tokenizer: Tokenizer, answer: Answer, started: float) -> None:
    """Stream one prompt's answer."""
    params = SamplingParams(temperature=0.0, max_tokens=96)
    prompt = tokenizer.encode_chat([{"role": "user", "content": answer.prompt}])
    stream = client.generate(prompt, tokenizer.complete(params))
    answer.engine = stream.engine
    async for piece in read_text_async(stream, Detokenizer(tokenizer)):
        answer.add(piece, time.monotonic() - started)
    answer.end(time.monotonic() - started)


async def chat(
    source: ClusterSource,
    key: Path | None,
    engines: int,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
) -> list[Answer]:
    """Ask everything at once, print answers as they come, then the client's metrics.

    Args:
        source: where the engines' addresses are followed.
        key: file with the client's secret key; None where the engines speak without CURVE.
        engines: how many are Ready now; others, such as one being replaced, are not waited for.
    """
    registry = CollectorRegistry()
    server, thread = start_metrics_server(registry, 0, "127.0.0.1")
    try:
        async with AsyncMPClient(
            client_addresses=source,
            client_key=key,
            client_name="demo",
            registry=registry,
            ready_timeout=READY_SECONDS,
            min_ready=engines,
        ) as client:
            answers = [Answer(number, prompt) for number, prompt in enumerate(prompts, start=1)]
            started = time.monotonic()
            await asyncio.gather(*(ask(client, tokenizer, answer, started) for answer in answers))
            show_answers(answers)
            await show_metrics(server.server_port, engines)
        return answers
    finally:
        server.shutdown()
        thread.join()


def show_answers(answers: Sequence[Answer]) -> None:
    """Print which engine served which prompt, and how fast."""
    print("\n   prompt                                    engine   first token     whole")
    for answer in answers:
        print(
            f"   {answer.number} {answer.prompt:<40.40} {answer.engine!s:>5}"
            f" {answer.first_at * 1000:>10.0f} ms {answer.done_at:>7.1f} s"
        )


async def show_metrics(port: int, engines: int) -> None:
    """Print the client's metrics as Prometheus would scrape them, once every engine told its state.

    Raises:
        SystemExit: an engine sent no stats within STATS_SECONDS.
    """
    end = time.monotonic() + STATS_SECONDS
    while True:
        lines = await asyncio.to_thread(scrape, port)
        told = [line for line in lines if line.startswith("vllm:num_requests_running{")]
        if len(told) >= engines:
            break
        if time.monotonic() > end:
            sys.exit(f"stats of {len(told)} of {engines} engines within {STATS_SECONDS:.0f} s")
        await asyncio.sleep(0.1)
    print(f"\n   http://127.0.0.1:{port}/metrics of this client:")
    for line in lines:
        if line.partition("{")[0] in SHOWN_METRICS:
            print(f"   {line}")


def scrape(port: int) -> list[str]:
    """Return the lines of the metrics page."""
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cluster", default="smollm2", help="name of the EngineCluster")
    parser.add_argument("--namespace", default="default", help="its namespace")
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT, help="GGUF file or folder")
    parser.add_argument("--prompt", action="append", default=[], help="instead of the eight")
    return parser.parse_args(arguments)


def main() -> int:
    """Run the program; returns 1 where the engines do not know the capital of France."""
    options = parse_arguments()
    status = read_status(options.cluster, options.namespace)
    for rank, address in enumerate(status["clientAddresses"]["input_address"]):
        print(f"   engine {rank}: {address or 'no address'}")
    tokenizer = Tokenizer.load(options.checkpoint)
    prompts = options.prompt or PROMPTS
    source = ClusterSource(options.cluster, options.namespace)
    with TemporaryDirectory() as directory:
        key = None
        if status["clientAddresses"].get("server_key"):
            key = write_client_key(options.cluster, options.namespace, Path(directory))
            print(f"   encrypted (CURVE), with the key in secret/{options.cluster}-client")
        try:
            answers = asyncio.run(chat(source, key, status["readyReplicas"], tokenizer, prompts))
        except EngineCoreError as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            return 1
    if not options.prompt and "Paris" not in answers[0].text:
        sys.stderr.write(f"{answers[0].prompt} {answers[0].text!r} does not say Paris\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
