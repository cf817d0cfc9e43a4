"""A launcher around the stub engine, as vLLM's headless one is around an EngineCore."""

import signal
import subprocess
import time
from collections.abc import Sequence

LINGER_SECONDS = 4.0
"""vLLM's launcher outlives a killed EngineCore this long and then exits with code 0."""


def launch(command: Sequence[str]) -> int:
    """Run the engine as a child and return the exit status; SIGTERM goes to the child."""
    child = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    code = child.wait()
    if code < 0:
        time.sleep(LINGER_SECONDS)
        return 0
    return code
