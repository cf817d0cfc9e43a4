"""Every example of the client, and every program in its guides, runs against real pods."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from enginecore_wire.contract import ModelConfig
from support.checkpoint import fetch_checkpoint
from support.pod import Pod, client_addresses, stub_config
from support.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.timeout(180)

ROOT = Path(__file__).parents[3]
GUIDES = "".join((ROOT / "docs" / name).read_text() for name in ("client.md", "contract-suite.md"))
PROGRAMS = re.findall(r"^```python\n(.*?)^```", GUIDES, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file with the addresses of two pods."""
    path = tmp_path_factory.mktemp("addresses") / "client_addresses.json"
    options = ("--tokens", "64", "--vocab-size", "49152", "--stats", "--token-seconds", "0.002")
    model = ModelConfig(path="stub", served_name="stub", vocab_size=49152)
    configs = [
        msgspec.structs.replace(stub_config(*options, "--rank", str(rank), rank=rank), model=model)
        for rank in range(2)
    ]
    with Pod(configs[0]) as one, Pod(configs[1]) as two:
        pods = [one.wait_ready(), two.wait_ready()]
        path.write_text(json.dumps(client_addresses(pods)))
        write_tiny_llama(path.parent / "tiny-llama")
        yield path


def run(*arguments: object, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *map(str, arguments)],
        cwd=cwd, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_stream(addresses: Path) -> None:
    text = run(ROOT / "examples/01-stream/stream.py", addresses, cwd=addresses.parent)
    for number, token in ((0, 1), (1, 4), (2, 8)):
        assert f"{number}: [{token}]" in text
    counted = re.findall(r"generation_tokens_total\{engine=\"(\d)\".*\} (\S+)", text)
    assert sum(float(value) for _, value in counted) == 24
    assert {engine for engine, _ in counted} == {"0", "1"}


def test_control(addresses: Path) -> None:
    text = run(ROOT / "examples/02-control/control.py", addresses, cwd=addresses.parent)
    assert "tasks: ['generate']" in text
    assert "the same, as a value: False" in text
    assert "cannot sleep: Call to sleep method failed" in text
    assert "tokens: [1, 2, 3, 1]" in text


@pytest.mark.model
def test_chat(addresses: Path) -> None:
    chat = ROOT / "examples/03-chat/chat.py"
    model = fetch_checkpoint().parent
    text = run(chat, addresses, model, "Is 2 < 3?", cwd=addresses.parent)
    # The fake engine repeats the prompt, and stops where the template ends the first turn.
    assert text.startswith("system\nYou are a helpful AI assistant")
    assert "Is 2 < 3?" not in text


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_program_of_the_guide(addresses: Path, number: int) -> None:
    program = addresses.parent / f"guide-{number}.py"
    program.write_text(PROGRAMS[number])
    run(program, cwd=addresses.parent)


def test_the_guide_has_programs() -> None:
    assert len(PROGRAMS) >= 4
