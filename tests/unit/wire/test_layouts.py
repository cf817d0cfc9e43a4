"""Which positions an engine uses: told by its version, checked against what it reports."""

import pytest

from enginecore_wire.dialects import NATIVE, Dialect, confirm, dialect_in, dialect_of
from enginecore_wire.layouts import Layout, LayoutError, layout_of, release_of


@pytest.mark.parametrize(
    ("version", "layout"),
    [("0.11.0", "A"), ("0.11.2rc1", "A"), ("0.16.9", "A"), ("0.17.0+cpu", "B"), ("v0.17.1", "B"),
     ("0.20.2", "B"), ("0.21", "C"), ("v0.32.0-cu129", "C"), ("0.32.1", "C"), ("0.33.0", "C"),
     ("1.0.0", "C"), ("0.16.1.dev3+g12", "A")],
)  # fmt: skip
def test_layout_of_a_version(version, layout):
    assert layout_of(version) is Layout(layout)


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("0.10.2", "vLLM 0.10.2, this side speaks vLLM 0.11 to 0.32"),
        ("0.8.5", "update the engine"),
        ("latest", "'latest' names no vLLM release"),
        ("", "names no vLLM release"),
        ("enginecore-torch-0.1.0", "names no vLLM release"),
        ("0.1.dev7+gabc", "names no vLLM release"),
        ("0.x.1", "names no vLLM release"),
        ("0.3200000", "names no vLLM release"),
    ],
)
def test_version_without_a_layout(version, says):
    with pytest.raises(LayoutError, match=says) as raised:
        layout_of(version)
    assert raised.value.declared == version


@pytest.mark.parametrize(
    ("version", "release"),
    [("v0.9.2", (0, 9, 2)), ("0.40", (0, 40, 0)), ("v0.11.1rc2+cpu", (0, 11, 1))],
)
def test_release_of_a_version_beyond_what_is_spoken(version, release):
    assert release_of(version) == release


def test_newer_release_is_read_as_the_newest_known():
    assert dialect_of("0.47.0") == dialect_of("0.32.0") == NATIVE


@pytest.mark.parametrize(
    ("declared", "reported", "release"),
    [
        (None, None, (0, 32)),
        (None, "", (0, 32)),
        (None, "0.24.1", (0, 24, 1)),
        (None, "enginecore-torch-0.1.0", (0, 32)),
        ("0.18.0", None, (0, 18, 0)),  # vLLM before 0.23 reports no version
        ("0.18.0", "0.19.2", (0, 19, 2)),
        ("0.25.0", "0.32.0+cpu", (0, 32)),
        ("0.32.0", "0.41.0", (0, 32)),
        ("0.30.0", "dev", (0, 30, 0)),
    ],
)
def test_what_an_engine_reports_confirms_what_was_declared(declared, reported, release):
    assert confirm(declared, reported).release == release


@pytest.mark.parametrize(
    ("declared", "reported", "both"),
    [
        ("0.18.0", "0.32.0", r"vLLM 0.32.0 \(layout C\).*0.18.0 \(layout B\)"),
        ("0.32.0", "0.16.1", r"vLLM 0.16.1 \(layout A\).*0.32.0 \(layout C\)"),
        (None, "0.10.0", r"vLLM 0.10.0, this side speaks"),
        ("0.9.0", "0.32.0", r"vLLM 0.9.0, this side speaks"),
    ],
)
def test_contradiction_names_both_sides(declared, reported, both):
    with pytest.raises(LayoutError, match=both):
        confirm(declared, reported)


@pytest.mark.parametrize(
    ("layout", "version", "release"),
    [("C", "0.32.0", (0, 32)), ("C", "0.99.0", (0, 32)), ("B", "0.19.0", (0, 19, 0)),
     ("A", "", (0, 16)), ("B", "own-1.0", (0, 20)), ("C", "enginecore-torch-0.1.0", (0, 32))],
)  # fmt: skip
def test_dialect_behind_a_pod(layout, version, release):
    assert dialect_in(layout, version) == Dialect(release)


@pytest.mark.parametrize(
    ("layout", "version", "both"),
    [
        ("D", "0.50.0", r"layout 'D' \(version 0.50.0\), this side A, B, C"),
        ("", "", r"layout '' \(version unknown\)"),
        ("C", "0.18.0", r"layout C of an engine that is vLLM 0.18.0 \(layout B\)"),
        ("A", "0.32.0", r"layout A of an engine that is vLLM 0.32 \(layout C\)"),
    ],
)
def test_pod_with_a_layout_that_cannot_be(layout, version, both):
    with pytest.raises(LayoutError, match=both):
        dialect_in(layout, version)


@pytest.mark.parametrize(("release", "place"), [((0, 11), 11), ((0, 17), 10), ((0, 21), 11)])
def test_place_of_the_client_index(release, place):
    assert Dialect(release).client_index == place
