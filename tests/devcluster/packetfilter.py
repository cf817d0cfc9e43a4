"""The host's packet filter: what a node's programs wrote into it, and the removal of that."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.network import run_tool

# kube-proxy, kubelet and kube-router; the CNI plugins.
OWN_PREFIXES = ("KUBE-", "CNI-")
_POLICY_CHAIN = "KUBE-ROUTER-FORWARD"
_LEGACY = "iptables-legacy"
_FAMILIES = ("iptables", "ip6tables", _LEGACY)


def link_legacy_tools(folder: Path) -> None:
    """Makes a directory in which iptables writes the kernel's older tables.

    kube-router reads the whole table `filter`, and a moment later writes all of it: what kube-proxy
    changed in between would be undone, for as long as no Service changes. In tables of its own it
    harms nobody; a packet has to pass both.

    Raises:
        DevclusterError: iptables has no such mode here.
    """
    folder.mkdir()
    for tool in ("iptables", "iptables-save", "iptables-restore"):
        legacy = shutil.which(tool.replace("iptables", _LEGACY))
        if legacy is None:
            raise DevclusterError(f"{_LEGACY} is missing: install Debian's package iptables")
        (folder / tool).symlink_to(legacy)


def saved_rules() -> dict[str, str]:
    """Returns what iptables-save prints, by family."""
    return {family: run_tool(f"{family}-save") for family in _FAMILIES}


def enforces_policies() -> bool:
    """Tells whether kube-router has put its rules before what is forwarded to pods."""
    rules = run_tool(_LEGACY, "--wait", "--list-rules", "FORWARD").splitlines()
    return any(rule.endswith(f"-j {_POLICY_CHAIN}") for rule in rules)


def remove_rules() -> None:
    """Removes every chain of the dev cluster and every rule that leads to one."""
    for family, saved in saved_rules().items():
        script = removal_script(saved)
        if script:
            run_tool(f"{family}-restore", "--wait", "--noflush", stdin=script)


def own_sets() -> list[str]:
    """Lists the sets of addresses and ports that kube-router's rules name."""
    if shutil.which("ipset") is None:
        return []
    return [name for name in run_tool("ipset", "list", "-name").split() if is_own_set(name)]


def remove_sets() -> None:
    """Destroys these sets; the rules that name them are gone."""
    for name in own_sets():
        run_tool("ipset", "destroy", name)


def is_own_set(name: str) -> bool:
    """Tells whether a set of this name is kube-router's, of either family."""
    return name.removeprefix("inet6:").startswith(OWN_PREFIXES)


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
