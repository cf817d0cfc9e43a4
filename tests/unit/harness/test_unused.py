"""No function, method or class is there for nobody."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.unused import Definition, find_unused

pytestmark = pytest.mark.timeout(300)  # every source is parsed

ROOT = Path(__file__).resolve().parents[3]
FOR_TESTS = ROOT / "client/src/enginecore_client/testing"
FOR_CALLERS = {
    "with_numpy_dtype": "of Tensor, whose dtype may have torch's name",
    "engine_core": "of InprocClient: its engine",
    "vanish": "of FakeEngine: a way to end",
    "thaw": "of FakeEngine: the end of freeze",
}
"""What only users of the packages call and no document names: name → what it is for."""


def python(*places: str) -> Iterator[Path]:
    for place in places:
        yield from sorted((ROOT / place).rglob("*.py"))


PRODUCT = [
    path
    for path in (
        *python("client/src", "engine-image/src", "operator/src", "charts", "examples"),
        ROOT / "operator/slim.py",
        *(ROOT / "engine-image" / name for name in ("check_base.py", "build_zipapp.py")),
    )
    if FOR_TESTS not in path.parents
]
TESTS = [
    *(path for path in python("tests") if "golden" not in path.parts),
    *python(str(FOR_TESTS)),
]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def told(found: list[Definition]) -> list[str]:
    return [
        f"{item.path.relative_to(ROOT)}:{item.line} {item.name}"
        for item in found
        if item.name not in FOR_CALLERS
    ]


def test_the_product_uses_or_documents_all_it_has() -> None:
    """A test is no use: code that only its tests call is dead."""
    assert told(find_unused(PRODUCT, documents=DOCUMENTS)) == []


def test_tests_use_all_that_was_written_for_them() -> None:
    assert told(find_unused(TESTS, PRODUCT)) == []


@pytest.mark.parametrize(
    ("source", "unused"),
    [
        ("def a(): pass", ["a"]),
        ("def a(): pass\nb = a", []),
        ("def a(): a()", []),
        ("class A:\n    def b(self): pass\nA()", ["b"]),
        ("class A:\n    def b(self): pass\nA().b()", []),
        ("class A(Struct):\n    def b(self): pass\nA()", ["b"]),
        ("class A(Handler):\n    def do_GET(self): pass\nA()", []),
        ("class A:\n    @property\n    def b(self): pass\nA()", ["b"]),
        ("@on.event()\ndef a(): pass", []),
        ("@pytest.fixture\ndef a(): pass", ["a"]),
        ("@pytest.fixture\ndef a(): pass\ndef test_it(a): pass", []),
        ("@pytest.fixture\ndef a(): pass\npytest.mark.usefixtures('a')", []),
        ("class A: pass\nrun('--worker', 'package.module.A')", []),
        ("@pytest.fixture(autouse=True)\ndef a(): pass", []),
        ("def test_it(): pass\ndef pytest_configure(): pass", []),
        ("async def a(): pass\nf(b=a)", []),
    ],
)
def test_what_is_found(source: str, unused: list[str], tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(source)
    assert [item.name for item in find_unused([file])] == unused
    document = tmp_path / "guide.md"
    document.write_text("`a` and `A.b` are for you")
    assert find_unused([file], documents=[document]) == []
