"""The processes of a pod as its node sees them, by the part they play."""

from pathlib import Path

from support.pod import descendants

PARTS = ("engine", "launcher", "server")


def pod_processes(uid: str, program: str) -> list[int]:
    """Return the host's pids of a pod's processes whose command line has `program` in it.

    Args:
        uid: the pod's uid; its cgroup is named after it.
        program: part of the command line.
    """
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            cgroup = (process / "cgroup").read_text()
            command = (process / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"pod{uid}" in cgroup and program.encode() in command:
            found.append(int(process.name))
    return sorted(found)


def engine_pod_processes(uid: str) -> dict[str, int]:
    """Return part → pid of an engine's pod.

    The server is the container's PID 1, the launcher the child it starts, the engine the last
    process below that; launcher and engine are the same where the engine is started directly.
    """
    server = pod_processes(uid, "enginecore-server")[0]
    below = descendants(server)
    return {"server": server, "launcher": below[0], "engine": below[-1]}
