"""The vLLM release that is beside the server, and when it counts."""

from importlib import metadata

import pytest

from enginecore_server.release import installed_release, with_release
from enginecore_wire.contract import ModelConfig, RuntimeConfig, ServerConfig


@pytest.mark.parametrize(
    ("kind", "declared", "installed", "version"),
    [
        ("vllm", "", "0.19.1", "0.19.1"),
        ("vllm", "", "0.32.0+cpu", "0.32.0+cpu"),
        ("vllm", "0.21.0", "0.19.1", "0.21.0"),
        ("vllm", "", "", ""),
        ("vllm", "", "0.1.dev1+gabc", ""),
        ("torch", "", "0.19.1", ""),
    ],
)
def test_whose_word_counts(kind: str, declared: str, installed: str, version: str) -> None:
    runtime = RuntimeConfig(type=kind, version=declared)  # type: ignore[arg-type]
    config = ServerConfig(name="engine", model=ModelConfig(path="m"), runtime=runtime)
    assert with_release(config, lambda: installed).runtime.version == version


@pytest.mark.parametrize(("there", "found"), [(True, "0.32.0"), (False, "")])
def test_what_is_installed(there: bool, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if not there:
            raise metadata.PackageNotFoundError(name)
        return {"vllm": "0.32.0"}[name]

    monkeypatch.setattr(metadata, "version", version)
    assert installed_release() == found
