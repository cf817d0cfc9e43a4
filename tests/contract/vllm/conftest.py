"""What needs a real vLLM: its environment, its model, and engines that tests share."""

from collections.abc import Iterator

import pytest

from enginecore_client.text import Tokenizer
from support.faces import FACES, Face
from support.vllm_engines import SETS, EngineRoom, EngineSet
from support.vllm_environment import build_environment, build_model


@pytest.fixture(scope="session")
def room() -> Iterator[EngineRoom]:
    """Where engines are; at most one set at a time."""
    python = build_environment()
    engines = EngineRoom(python, build_model(python))
    yield engines
    engines.clear()


@pytest.fixture(scope="session", params=list(SETS))
def engines(request: pytest.FixtureRequest, room: EngineRoom) -> EngineSet:
    """Engines that all tests of one transport share."""
    return room.get(request.param)


@pytest.fixture(params=list(FACES))
def face(request: pytest.FixtureRequest, engines: EngineSet) -> Face:
    """A client that is connected to them, once of each kind."""
    return engines.face(request.param)


@pytest.fixture(scope="session")
def tokenizer(room: EngineRoom) -> Tokenizer:
    return Tokenizer.load(room.model)
