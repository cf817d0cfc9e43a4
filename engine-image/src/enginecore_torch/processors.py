"""How many CPU threads a process may keep busy: PyTorch counts the machine's, not its own."""

import math
import os
from collections.abc import Mapping
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")


def usable_threads(affinity: int, quota: float | None) -> int:
    """Return how many threads to compute with.

    More threads than the quota allows would be throttled while the others spin.

    Args:
        affinity: CPUs this process may run on.
        quota: CPUs' worth of time it may use, None for no bound.
    """
    return affinity if quota is None else max(1, min(affinity, math.floor(quota)))


def default_threads(environment: Mapping[str, str]) -> int:
    """Return how many threads to compute with in this process.

    Args:
        environment: OMP_NUM_THREADS in it, if it is a number, decides.
    """
    told = environment.get("OMP_NUM_THREADS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    return usable_threads(len(os.sched_getaffinity(0)), cgroup_quota(CGROUP_ROOT))


def cgroup_quota(root: Path) -> float | None:
    """Return the CPUs that the control group at `root` may use, or None for no bound.

    Reads version 2 (`cpu.max`) and version 1 (`cpu/cpu.cfs_*`) alike.
    """
    unified = root / "cpu.max"
    if unified.is_file():
        quota, _, period = unified.read_text().partition(" ")
        return None if quota == "max" else int(quota) / int(period)
    limit, period_file = root / "cpu/cpu.cfs_quota_us", root / "cpu/cpu.cfs_period_us"
    if limit.is_file() and period_file.is_file():
        microseconds = int(limit.read_text())
        return None if microseconds <= 0 else microseconds / int(period_file.read_text())
    return None
