"""The contract suite over a real vLLM: behind engine servers, dialling in, launched, in process."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

import enginecore_client
import support
from enginecore_client.testing.behaviours import Ground
from enginecore_client.testing.cells import ASYNC, BALANCED, SYNC, Cell, Way
from enginecore_client.testing.suite import ContractTests, contract_tests
from support.vllm_contract import SETS, VLLM_ENGINE, VllmDeployments
from support.vllm_engines import ENVIRONMENT, EngineRoom

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.may_leak("processes", "threads", "sockets", reason="engines are shared"),
]

OWN: Mapping[Way, Mapping[str, set[str]]] = {
    Way.CONNECT: {client: {"closing_ends_everything"} for client in (SYNC, ASYNC, BALANCED)},
    Way.BIND: {client: {"closing_ends_everything"} for client in (SYNC, ASYNC, BALANCED)},
    Way.LAUNCH: {
        SYNC: {"failed_start_is_told", "killed_engine_fails_every_call"},
        ASYNC: {"stopped_engine_ends_in_order", "closing_ends_everything"},
        BALANCED: {"one_engine_dies_alone"},
    },
}
"""Which behaviours have engines of their own, each of which takes half a minute to start."""

STARTING = {name for clients in OWN.values() for names in clients.values() for name in names} | {
    "absent_engine_is_named",
}


def asks(cell: Cell, behaviour: str) -> bool:
    return behaviour not in STARTING or behaviour in OWN.get(cell.way, {}).get(cell.client, set())


def with_shared_engines(tests: type[ContractTests]) -> type[ContractTests]:
    """Have pytest run these beside all other tests of the same engines."""
    name = SETS.get(tests.place.cell.way)
    if name is not None:
        tests.pytestmark = [  # type: ignore[attr-defined]
            pytest.mark.usefixtures("engines"),
            pytest.mark.parametrize("engines", [name], indirect=True, scope="session"),
        ]
    return tests


MADE = contract_tests([VLLM_ENGINE], asks=asks)
globals().update(
    {name: with_shared_engines(it) if name.startswith("Test") else it for name, it in MADE.items()}
)


@pytest.fixture(scope="module")
def deployments(room: EngineRoom) -> VllmDeployments:
    return VllmDeployments(room)


@pytest.fixture(scope="class")
def ground(request: pytest.FixtureRequest, deployments: VllmDeployments) -> Ground:
    return deployments.ground(request.cls.place)


SUITE = Path(support.__path__[0]) / "vllm_in_process.py"
PATHS = (Path(enginecore_client.__path__[0]).parent, SUITE.parents[1])
RUNNER = ("pytest", "_pytest", "py.py", "pluggy", "iniconfig")
"""What it takes to run tests in vLLM's environment, and is not in it."""


def test_in_process(room: EngineRoom, tmp_path: Path) -> None:
    room.clear()
    for name in RUNNER:
        (tmp_path / name).symlink_to(Path(pytest.__file__).parents[1] / name)
    path = os.pathsep.join(map(str, (tmp_path, *PATHS)))
    done = subprocess.run(
        [str(room.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path,
         "-c", os.devnull, str(SUITE)],
        env=os.environ | ENVIRONMENT | {"PYTHONPATH": path, "VLLM_TEST_MODEL": str(room.model)},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    print(done.stdout[-3000:])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert " passed" in done.stdout
