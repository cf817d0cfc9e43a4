"""For every test: tiers, leak checks, and skips that continuous integration accepts."""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from support.leaks import holdings, mark_session, settled_leaks
from support.skips import SkipList

pytest_plugins = ["devcluster.fixtures"]

TIERS = ("api", "e2e", "chart", "model", "vllm")
LEAK_KINDS = frozenset({"threads", "sockets", "processes"})

_SKIPS = pytest.StashKey[SkipList]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        action="append",
        default=[],
        choices=TIERS,
        help="run the tests of this marker too (repeatable); without it only tests of no tier run",
    )
    parser.addoption(
        "--full-counts",
        action="store_true",
        help="tests that repeat or observe something do so as often or as long as was asked for",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "model: needs the SmolLM2 checkpoint (tests/support/checkpoint.py)"
    )
    config.addinivalue_line(
        "markers",
        "counted(short, full): how often, or how many seconds, a test does what it shows: "
        "`short` for `make test`, `full` with --full-counts for `make soak` (fixture `counted`)",
    )
    config.addinivalue_line(
        "markers",
        "may_leak(*kinds, reason): what this test (or module) may leave behind: "
        "threads, sockets, processes",
    )
    config.stash[_SKIPS] = SkipList(Path(__file__).with_name("skips.toml"))
    mark_session()


def pytest_report_header(config: pytest.Config) -> str:
    chosen = config.getoption("--tier")
    return f"tiers: {', '.join(chosen) or 'none'} (--tier {'|'.join(TIERS)})"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = set(TIERS) - set(config.getoption("--tier"))
    dropped = [item for item in items if any(item.get_closest_marker(tier) for tier in left_out)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in set(dropped)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        _judge_skip(item.config, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        _judge_skip(collector.config, report)
    return report


def _judge_skip(config: pytest.Config, report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("CI") == "true" and not config.stash[_SKIPS].allows(report.nodeid):
        report.outcome = "failed"
        report.longrepr = (
            f"skipped in continuous integration without a reason in tests/skips.toml: "
            f"{report.longrepr}"
        )


@pytest.fixture
def counted(request: pytest.FixtureRequest) -> float:
    """How often, or how many seconds, this test is to do what it shows (marker `counted`)."""
    marker = request.node.get_closest_marker("counted")
    if marker is None or marker.args or set(marker.kwargs) != {"short", "full"}:
        pytest.fail(
            "the fixture `counted` needs the marker counted(short=…, full=…)", pytrace=False
        )
    count: float = marker.kwargs["full" if request.config.getoption("--full-counts") else "short"]
    return count


@pytest.fixture(scope="module", autouse=True)
def no_module_leaks(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Fail the module's last test if the module leaves something behind, orphans included.

    Yields the leaks that tests reported already, after which the module has nothing to add.
    """
    before = holdings(descendants=True)
    reported: list[str] = []
    yield reported
    if not reported:
        _fail(settled_leaks(before, _allowed(request.node), descendants=True))


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest, no_module_leaks: list[str]) -> Iterator[None]:
    """Fail a test that leaves threads, sockets or child processes behind."""
    before = holdings(descendants=False)
    yield
    leaks = settled_leaks(before, _allowed(request.node), descendants=False)
    no_module_leaks += leaks
    _fail(leaks)


def _allowed(node: pytest.Item | pytest.Module) -> frozenset[str]:
    allowed: set[str] = set()
    for marker in node.iter_markers("may_leak"):
        if not marker.kwargs.get("reason") or not set(marker.args) <= LEAK_KINDS:
            pytest.fail(f"may_leak takes {sorted(LEAK_KINDS)} and reason=…", pytrace=False)
        allowed.update(marker.args)
    return frozenset(allowed)


def _fail(leaks: dict[str, list[str]]) -> None:
    if leaks:
        lines = [f"{kind}: {', '.join(names)}" for kind, names in leaks.items()]
        pytest.fail("left behind: " + "; ".join(lines), pytrace=False)
