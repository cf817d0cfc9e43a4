"""Processes below the stub engine, as vLLM has them: workers, and one that is none."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

HELPER = "VLLM::Helper"


@contextmanager
def workers(count: int) -> Iterator[None]:
    """Have `count` workers and a helper; they end with this process, whose pipes they read."""
    titles = [*(f"VLLM::Worker_TP{number}" for number in range(count)), HELPER] if count else []
    with ExitStack() as stack:
        for title in titles:
            stack.enter_context(
                subprocess.Popen(
                    [title],
                    executable=shutil.which("cat"),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                )
            )
        yield
