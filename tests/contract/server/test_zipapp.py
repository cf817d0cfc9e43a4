"""The engine server as one file, run by a Python that has none of our packages."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.pod import Pod, stub_config
from support.raw_client import RawClient, request
from support.zipapp import SOURCES, bare_python, build_zipapp, foreign_packages, load_builder


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_zipapp(tmp_path_factory.mktemp("zipapp"))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return foreign_packages(tmp_path_factory.mktemp("packages") / "site")


@pytest.fixture
def pod(archive: Path, packages: Path) -> Iterator[Pod]:
    """A pod whose server is that file."""
    program = (*bare_python(), str(archive))
    with Pod(stub_config(), program=program, PYTHONPATH=str(packages)) as found:
        yield found.wait_ready()


def run(command: tuple[str, ...], packages: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(packages)}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_that_python_has_none_of_our_packages(packages: Path) -> None:
    for package in ("enginecore_wire", "enginecore_server", "enginecore_client"):
        done = run((*bare_python(), "-c", f"import {package}"), packages)
        assert "ModuleNotFoundError" in done.stderr


def test_it_serves_an_engine_and_ends_when_asked(pod: Pod) -> None:
    with RawClient(pod.input_port, pod.output_port) as client:
        client.ready()
        client.add(request("one", max_tokens=5))
        tokens, _ = client.tokens("one")
        assert len(tokens) == 5
    assert "enginecore_server" in pod.metrics()
    pod.process.send_signal(signal.SIGTERM)
    assert pod.process.wait(20) == 0


def test_equal_sources_make_equal_bytes(archive: Path, tmp_path: Path) -> None:
    """Whatever their dates, modes and place are."""
    copies = []
    for source in SOURCES:
        copies.append(tmp_path / source.parent.name)
        shutil.copytree(source, copies[-1])
    for file in (file for copy in copies for file in copy.rglob("*.py")):
        file.chmod(0o600)
        os.utime(file, (1, 1_500_000_000))
    again = tmp_path / "again.pyz"
    load_builder().main([*map(str, reversed(copies)), str(again)])
    assert again.read_bytes() == archive.read_bytes()


def test_a_python_without_the_libraries_says_so(archive: Path, tmp_path: Path) -> None:
    done = run((*bare_python(), str(archive)), tmp_path)
    assert done.returncode == 1
    assert "this image's python3 cannot import aiohttp" in done.stderr
    assert "set spec.runtime.image" in done.stderr


def test_wrong_settings_end_it_with_their_field(archive: Path, packages: Path) -> None:
    done = run((*bare_python(), str(archive), "--config", "/nowhere"), packages)
    assert done.returncode == 2
    assert "--config: cannot read /nowhere" in done.stderr
