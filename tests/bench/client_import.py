"""What `import enginecore_client` costs: seconds, resident memory, distributions it needs.

Each import runs in a fresh interpreter, and the best of several counts. Seconds are the
processor's: an import waits for nothing, and what else the machine does would only add. Bytecode
is there, as it is wherever pip installed the client; the first of the imports writes it.
"""

import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import requires

from support.measures import Measure

RUNS = 7
SECONDS_BAR = 0.15
MEMORY_BAR = 40 << 20
DEPENDENCIES = {"pyzmq", "msgspec", "prometheus-client"}

FLOOR = "import asyncio, msgspec, zmq"
"""What any client with these needs would import."""

_PROBE = """
import sys, time
start = time.process_time()
{statement}
seconds = time.process_time() - start
status = open("/proc/self/status").read()
resident = int(status.partition("VmRSS:")[2].split()[0]) * 1024
print(seconds, resident, ",".join(sorted(name for name in sys.modules if "." not in name)))
"""


def measure(
    statement: str = "import enginecore_client", runs: int = RUNS
) -> tuple[float, int, set[str]]:
    """Return the least seconds and resident bytes of `runs` imports, and the modules loaded."""
    probe = _PROBE.format(statement=statement)
    seconds, resident = [], []
    modules: set[str] = set()
    with tempfile.TemporaryDirectory() as bytecode:
        environment = os.environ | {"PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(runs + 1):
            text = subprocess.run(
                [sys.executable, "-c", probe],
                check=True, capture_output=True, text=True, env=environment,
            ).stdout.split()  # fmt: skip
            seconds.append(float(text[0]))
            resident.append(int(text[1]))
            modules |= set(text[2].split(","))
    return min(seconds), min(resident), modules


def dependencies() -> set[str]:
    """Return the distributions that the client's own distribution requires without extras."""
    found = requires("enginecore-client") or []
    return {re.split(r"[^A-Za-z0-9._-]", item)[0] for item in found if "extra ==" not in item}


if __name__ == "__main__":
    best, memory = measure()[:2]
    floor = measure(FLOOR)[0]
    Measure("import", best, "s", SECONDS_BAR).print()
    print(f"    {best / floor:.2f} times {FLOOR!r} of the same run ({floor:.3f} s)")
    Measure("resident after import", memory / (1 << 20), "MiB", MEMORY_BAR / (1 << 20)).print()
    Measure("dependencies", len(dependencies()), "", len(DEPENDENCIES)).print()
