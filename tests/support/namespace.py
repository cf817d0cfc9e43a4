"""A network of its own for a pod's processes, joined to this host by a pair of virtual devices."""

import os
import subprocess
from pathlib import Path
from typing import Final, Self

HOST_ADDRESS: Final = "198.18.0.1"
ADDRESS: Final = "198.18.0.2"
PREFIX: Final = 30


class NetworkNamespace:
    """A network namespace; a context manager. Needs root.

    Attributes:
        address: the IP address of what runs in it.
        program: what to put before a command to run it there.
    """

    def __init__(self) -> None:
        self.address = ADDRESS
        self._name = f"enginecore-{os.getpid()}"
        self._device = f"ec{os.getpid()}"
        self.program = ("ip", "netns", "exec", self._name)

    def __enter__(self) -> Self:
        _run("ip", "netns", "add", self._name)
        try:
            _run("ip", "link", "add", self._device, "type", "veth", "peer", "name", "eth0",
                 "netns", self._name)  # fmt: skip
            _run("ip", "address", "add", f"{HOST_ADDRESS}/{PREFIX}", "dev", self._device)
            _run("ip", "link", "set", self._device, "up")
            self._inside("ip", "address", "add", f"{ADDRESS}/{PREFIX}", "dev", "eth0")
            for device in ("lo", "eth0"):
                self._inside("ip", "link", "set", device, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if Path("/sys/class/net", self._device).exists():
            _run("ip", "link", "delete", self._device)  # the kernel takes its time with the other
        _run("ip", "netns", "delete", self._name)

    def drop_packets(self, *, begin: bool) -> None:
        """Begin, or cease, to drop every packet from and to this host, without a word."""
        for chain, side in (("INPUT", "--in-interface"), ("OUTPUT", "--out-interface")):
            what = "--append" if begin else "--delete"
            self._inside("iptables", "--wait", what, chain, side, "eth0", "--jump", "DROP")

    def _inside(self, *command: str) -> None:
        _run(*self.program, *command)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
