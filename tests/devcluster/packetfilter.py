"""The host's iptables rules: what keeps pods on this machine, and their removal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from devcluster.network import BRIDGE, run_tool

CLOSED_CHAIN = "ENGINECORE-DEVCLUSTER"
# kube-proxy and kubelet; the CNI plugins; this module.
OWN_PREFIXES = ("KUBE-", "CNI-", CLOSED_CHAIN)
_FAMILIES = ("iptables", "ip6tables")


def close_bridge() -> None:
    """Refuses what pods send beyond this machine; they have no business there."""
    run_tool("iptables", "--wait", "--new-chain", CLOSED_CHAIN)
    leaving = ("--in-interface", BRIDGE, "!", "--out-interface", BRIDGE)
    run_tool("iptables", "--wait", "--append", CLOSED_CHAIN, *leaving, "--jump", "REJECT")
    run_tool("iptables", "--wait", "--insert", "FORWARD", "--jump", CLOSED_CHAIN)


def remove_rules() -> None:
    """Removes every chain of the dev cluster and every rule that leads to one."""
    for family in _FAMILIES:
        script = removal_script(run_tool(f"{family}-save"))
        if script:
            run_tool(f"{family}-restore", "--wait", "--noflush", stdin=script)


def removal_script(saved: str) -> str:
    """Turns the output of iptables-save into input for iptables-restore --noflush.

    Chains whose name begins with one of `OWN_PREFIXES` go, and the rules of
    other chains that jump to them; everything else stays untouched.

    Returns:
        The script, empty where there is nothing to remove.
    """
    return "".join(_table_script(lines) for lines in _tables(saved))


def _tables(saved: str) -> Iterator[list[str]]:
    lines: list[str] = []
    for line in saved.splitlines():
        if line.startswith("*"):
            lines = [line]
        elif line == "COMMIT":
            yield lines
        elif line and not line.startswith("#"):
            lines.append(line)


def _table_script(lines: list[str]) -> str:
    chains = [line[1:].split()[0] for line in lines if line.startswith(":")]
    own = [chain for chain in chains if chain.startswith(OWN_PREFIXES)]
    if not own:
        return ""
    deletions = [
        f"-D {line.removeprefix('-A ')}"
        for line in lines
        if line.startswith("-A ") and _leads_to_own(line)
    ]
    flushes = [f"-F {chain}" for chain in own]
    removals = [f"-X {chain}" for chain in own]
    return "\n".join([lines[0], *deletions, *flushes, *removals, "COMMIT"]) + "\n"


def _leads_to_own(rule: str) -> bool:
    words = shlex.split(rule)
    if words[1].startswith(OWN_PREFIXES):
        return False
    for option in ("-j", "-g"):
        if option in words and words[words.index(option) + 1].startswith(OWN_PREFIXES):
            return True
    return False
