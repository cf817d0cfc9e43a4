"""The EngineCore in this process, over a tiny model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from enginecore_torch.core import EngineCore
from support.tiny_llama import write_tiny_llama
from support.torch_runs import MAX_POSITIONS, make_core


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model"), MAX_POSITIONS)


@pytest.fixture(scope="module")
def shared(model: Path) -> EngineCore:
    """An engine for tests that leave it without requests."""
    return make_core(model)


@pytest.fixture
def core(shared: EngineCore) -> Iterator[EngineCore]:
    yield shared
    assert not shared.has_work()
    assert shared.load == (0, 0)
