"""Command line: ``python -m devcluster VERB``."""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import devcluster
from devcluster import binaries, cluster, images, node, pins, state
from devcluster.errors import DevclusterError
from devcluster.handle import attach
from devcluster.locations import Locations
from devcluster.processes import boot_id

_STARTED = time.monotonic()


def progress(line: str) -> None:
    """Prints a step with the seconds since the command began."""
    print(f"[devcluster {time.monotonic() - _STARTED:6.1f} s] {line}", file=sys.stderr, flush=True)


def run_build(options: argparse.Namespace, locations: Locations) -> int:
    names = dict.fromkeys(name for tier in options.tier for name in binaries.TIERS[tier])
    names |= dict.fromkeys(options.program)
    for path in binaries.build(names, locations.cache, progress).values():
        print(path)
    return 0


def run_bin(options: argparse.Namespace, locations: Locations) -> int:
    paths = binaries.build([options.program], locations.cache, progress)
    print(paths[options.program])
    return 0


def run_up(options: argparse.Namespace, locations: Locations) -> int:
    request = cluster.UpRequest(
        name=options.name or options.tier,
        tier=options.tier,
        held=options.hold,
        controllers=options.controllers,
        kwok=options.kwok,
        gpus=options.gpus,
        wait_seconds=options.wait,
    )
    parent = os.pidfd_open(os.getppid())
    record = cluster.up(request, locations, progress)
    directory = locations.run(record.name)
    if not options.hold:
        print(directory.kubeconfig)
        return 0
    ready = {"name": record.name, "kubeconfig": str(directory.kubeconfig), "server": record.server}
    try:
        print(json.dumps(ready), flush=True)
        _wait_for_release(parent)
    finally:
        cluster.down(record.name, locations, progress)
    return 0


def _wait_for_release(parent: int) -> None:
    """Returns when standard input closes or the parent process ends."""
    poll = select.poll()
    poll.register(parent, select.POLLIN)
    poll.register(0, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        if parent in ready or (0 in ready and not os.read(0, 4096)):
            return


def run_down(options: argparse.Namespace, locations: Locations) -> int:
    if not cluster.down(options.name, locations, progress):
        progress(f"there is no run called {options.name}")
    return 0


def run_status(_: argparse.Namespace, locations: Locations) -> int:
    for directory in state.runs(locations):
        record = state.load(directory)
        if record is None:
            print(f"{directory.name}: no record ({state.Verdict.ABANDONED})")
            continue
        verdict = state.judge(record, boot_id())
        age = time.time() - record.started
        print(f"{record.name}: tier {record.tier}, {verdict}, {age:.0f} s old, {record.server}")
        print(f"  kubeconfig {directory.kubeconfig}")
        for name, identity in record.processes.items():
            print(f"  {name} {identity.pid}")
    return 0


def run_kubeconfig(options: argparse.Namespace, locations: Locations) -> int:
    print(attach(options.name, locations).kubeconfig)
    return 0


def run_load_image(options: argparse.Namespace, locations: Locations) -> int:
    attach(options.name, locations)
    programs = binaries.build(["ctr"], locations.cache, progress)
    for archive in options.archive:
        progress(f"importing {archive}")
        for name in node.load_image(locations.run(options.name), programs, archive):
            print(name)
    return 0


def run_build_base(options: argparse.Namespace, locations: Locations) -> int:
    print(images.build_base(options.base, locations.images, progress))
    return 0


def run_build_image(options: argparse.Namespace, locations: Locations) -> int:
    build = images.ImageBuild(
        dockerfile=options.file,
        context=options.context,
        tag=options.tag,
        base=options.base,
        arguments=dict(word.split("=", 1) for word in options.build_arg),
    )
    print(images.build_image(build, locations.images, progress))
    return 0


def run_reclaim(options: argparse.Namespace, locations: Locations) -> int:
    for name in cluster.reclaim(locations, progress):
        print(name)
    if options.routes:
        cluster.unblock_routes(locations)
    return 0


def run_pin(options: argparse.Namespace, _: Locations) -> int:
    for module in options.module or pins.MODULES:
        progress(f"pinning {module} {pins.MODULES[module].version}")
        pins.pin(module)
    return 0


def parser() -> argparse.ArgumentParser:
    """Declares the verbs and their options."""
    top = argparse.ArgumentParser(prog="devcluster", description=devcluster.__doc__)
    verbs = top.add_subparsers(required=True, metavar="VERB")

    def verb(
        name: str, run: Callable[[argparse.Namespace, Locations], int], text: str
    ) -> argparse.ArgumentParser:
        child = verbs.add_parser(name, help=text, description=text)
        child.set_defaults(run=run)
        return child

    build = verb("build", run_build, "Build the programs of a tier that are not cached yet.")
    build.add_argument("--tier", choices=binaries.TIERS, action="append", default=[])
    build.add_argument("program", nargs="*", help="single programs")
    one = verb("bin", run_bin, "Print the path of one program; build it if it is not cached.")
    one.add_argument("program")
    up = verb("up", run_up, "Bring a cluster up and print the path of its kubeconfig.")
    up.add_argument("--tier", choices=("api", "node"), default="node")
    up.add_argument("--name", default="", help="name of the run (default: the tier)")
    up.add_argument("--controllers", action="store_true", help="api: controllers and scheduler too")
    up.add_argument("--kwok", action="store_true", help="fake nodes too, with controllers")
    up.add_argument("--gpus", type=int, default=0, help="node: GPUs the scheduler shall count")
    up.add_argument(
        "--wait",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="node: how long to wait for another run to give the machine's node back",
    )
    up.add_argument(
        "--hold",
        action="store_true",
        help="stay, print a JSON line when ready, take the cluster down when standard input "
        "closes, the parent ends, or a signal comes",
    )
    down = verb("down", run_down, "Take a cluster down and remove what it made.")
    down.add_argument("--name", default="node")
    verb("status", run_status, "List the runs and their processes.")
    kubeconfig = verb("kubeconfig", run_kubeconfig, "Print the path of a run's kubeconfig.")
    kubeconfig.add_argument("--name", default="node")
    load = verb("load-image", run_load_image, "Import image archives into the node.")
    load.add_argument("archive", nargs="+", type=Path)
    load.add_argument("--name", default="node")
    base = verb("build-base", run_build_base, "Build a base image and print its archive.")
    base.add_argument("base", choices=images.BASES)
    image = verb("build-image", run_build_image, "Build a Dockerfile and print its archive.")
    image.add_argument("--file", type=Path, required=True, help="the Dockerfile")
    image.add_argument("--tag", required=True, help="full name of the image")
    image.add_argument("--base", choices=images.BASES, required=True, help="value of BASE_IMAGE")
    image.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    image.add_argument("context", type=Path)
    reclaim = verb("reclaim", run_reclaim, "Remove what runs left whose owner was killed.")
    reclaim.add_argument(
        "--routes",
        action="store_true",
        help="also the unreachable routes that keep stale pod addresses on this machine",
    )
    pin = verb("pin", run_pin, "Write the module files anew after a version changed.")
    pin.add_argument("module", nargs="*", choices=pins.MODULES)
    return top


def _raise_exit(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb; returns its exit status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _raise_exit)
    options = parser().parse_args(arguments)
    try:
        status: int = options.run(options, Locations.from_environment())
    except DevclusterError as error:
        print(f"devcluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return status


if __name__ == "__main__":
    sys.exit(main())
