"""docs/client.md: every test it names is there, and its table has a row for every name."""

import ast
import re
from pathlib import Path

import msgspec
import pytest

from enginecore_client import EngineCoreOutput, SamplingParams
from enginecore_client._faces.outputs import GeneratedOutput

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs/client.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", GUIDE)
TABLE = GUIDE.partition("## Names of vLLM's client, and their tests")[2]

NAMES = (
    "EngineCoreClient", "InprocClient", "MPClient", "SyncMPClient", "AsyncMPClient",
    "DPAsyncMPClient", "DPLBAsyncMPClient", "BackgroundResources", "__call__", "validate_alive",
    "ensure_alive", "_format_exception", "launch_core_engines", "make_zmq_socket", "engine_ranks",
    "core_engines", "core_engine", "EngineCoreRequestType", "MsgpackEncoder", "MsgpackDecoder",
    "utility_results", "utility tuple", "pending_messages", "add_pending_message",
    "free_pending_messages", "outputs_queue", "output thread", "engines_running", "make_client",
    "make_async_mp_client", "collective_rpc", "scale_elastic_ep",
)  # fmt: skip


def functions_of(file: Path) -> set[str]:
    nodes = ast.walk(ast.parse(file.read_text()))
    return {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(("file", "test"), NAMED, ids=[test for _, test in NAMED])
def test_the_guide_names_tests_that_exist(file: str, test: str) -> None:
    assert test in functions_of(ROOT / file)


@pytest.mark.parametrize("name", NAMES)
def test_the_table_has_a_row_for(name: str) -> None:
    rows = [row for row in TABLE.splitlines() if name in f"{row} | ".split("|")[1]]
    assert rows
    assert all("`tests/" in row for row in rows)


def rows_of(section: str) -> list[list[str]]:
    text = GUIDE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [row.strip("| ").split(" | ") for row in text.splitlines() if row.startswith("| `")]


def test_every_sampling_parameter_has_its_default_in_the_guide() -> None:
    told: dict[str, str] = {}
    for names, defaults, *_ in rows_of("Sampling parameters"):
        told |= zip(re.findall(r"`(\w+)`", names), re.findall(r"`([^`]+)`", defaults), strict=True)
    params = SamplingParams()
    fields = msgspec.structs.fields(SamplingParams)
    public = [field.name for field in fields if not field.encode_name.startswith("_")]
    assert set(told) == set(public)
    for name, default in told.items():
        value = getattr(params, name)
        assert default == getattr(value, "name", repr(value))
    for field in fields:
        assert f"`{field.name}`" in GUIDE


def test_every_field_of_an_output_is_in_the_guide() -> None:
    told = {name for row in rows_of("Outputs") for name in re.findall(r"`(\w+)`", row[0])}
    assert told == set(GeneratedOutput.__struct_fields__)
    assert set(EngineCoreOutput.__struct_fields__) < told
