"""The contract suite as a pytest plugin, for an engine or a client that the command line names.

    pytest -p enginecore_client.testing.plugin --pyargs enginecore_client.testing.test_contract \\
        --engine-command 'my-engine --handshake {address}:{port} --rank {rank}'

`python -m enginecore_client.testing` is short for all but the options.
"""

import importlib
import shlex
from typing import Any, Final

import pytest

from enginecore_client import EngineCommand
from enginecore_client.testing import test_contract
from enginecore_client.testing.deployments import CLIENT_CLASSES
from enginecore_client.testing.engines import FAKE_ENGINE, EngineUnderTest, Trait
from enginecore_client.testing.suite import contract_tests
from enginecore_wire.handshake import HELLO

GIVEN: Final = "given"
"""The name of an engine that a command starts, in the names of tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    add = parser.getgroup("contract suite of enginecore-client").addoption
    add(
        "--engine-command", metavar="COMMAND",
        help="starts an engine: {address} and {port} of its handshake, {rank} and {size} are "
        "replaced; without it the fake engine is tested",
    )  # fmt: skip
    add("--engine-local", action="store_true",
        help=f"the engine says local=true in its {HELLO}")  # fmt: skip
    add("--engine-vocab-size", type=int, metavar="N",
        help="token ids from N on are refused; without it that is not tested")  # fmt: skip
    add("--engine-long-tokens", type=int, default=900, metavar="N",
        help="tokens that take half a second or more and fit the context")  # fmt: skip
    add("--engine-start-seconds", type=float, default=60.0, metavar="S",
        help="within which it is ready")  # fmt: skip
    add("--engine-trait", action="append", default=[], choices=[each.value for each in Trait],
        help="something it does that not every engine does; more is then tested")  # fmt: skip
    add(
        "--client-class", action="append", default=[], metavar="NAME=MODULE:CLASS",
        help="tests this class in place of the client called NAME, and no other client; one of "
        f"{', '.join(CLIENT_CLASSES)}",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Put the tests into the module that pytest is about to collect."""
    classes = dict(_client_class(given) for given in config.getoption("--client-class"))
    vars(test_contract).update(contract_tests([_engine(config)], classes or None))


def pytest_report_header(config: pytest.Config) -> str:
    """Say which engine is tested."""
    return f"engine: {config.getoption('--engine-command') or 'the fake one'}"


def _engine(config: pytest.Config) -> EngineUnderTest:
    command = config.getoption("--engine-command")
    if command is None:
        return FAKE_ENGINE
    words = tuple(shlex.split(command))
    if not any("{port}" in word for word in words):
        raise pytest.UsageError(
            f"--engine-command: got {command!r}, which has no {{port}}, so that the engine would "
            "not know whom to dial; put {port} where it takes the handshake's port"
        )
    return EngineUnderTest(
        name=GIVEN,
        command=EngineCommand(words, local=config.getoption("--engine-local")),
        vocab_size=config.getoption("--engine-vocab-size"),
        long_tokens=config.getoption("--engine-long-tokens"),
        start_seconds=config.getoption("--engine-start-seconds"),
        traits=frozenset(Trait(each) for each in config.getoption("--engine-trait")),
    )


def _client_class(given: str) -> tuple[str, Any]:
    name, _, place = given.partition("=")
    module, _, attribute = place.partition(":")
    if name not in CLIENT_CLASSES or not module or not attribute:
        raise pytest.UsageError(
            f"--client-class: got {given!r}, allowed: NAME=MODULE:CLASS with one of "
            f"{', '.join(CLIENT_CLASSES)} for NAME"
        )
    try:
        return name, getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise pytest.UsageError(f"--client-class: got {given!r}, but {error}") from error
