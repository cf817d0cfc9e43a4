"""The CRDs in manifests/ are those of the structs, small enough for kubectl apply."""

from pathlib import Path

import msgspec
import pytest

from enginecore_operator.api.crdgen import (
    SIZE_LIMIT,
    UnsupportedTypeError,
    build_crds,
    main,
    render,
    type_schema,
)

CRDS = Path(__file__).resolve().parents[3] / "manifests" / "crds"


def test_committed_files_are_fresh() -> None:
    assert main(["--check", str(CRDS)]) == 0
    assert {path.name for path in CRDS.iterdir()} == set(build_crds())


def test_stale_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--write", str(tmp_path)]) == 0
    stale = tmp_path / "enginecores.enginecore.dev.yaml"
    stale.write_text(stale.read_text() + "\n")
    assert main(["--check", str(tmp_path)]) == 1
    assert str(stale) in capsys.readouterr().err


def test_size() -> None:
    assert all(len(render(crd).encode()) < SIZE_LIMIT / 2 for crd in build_crds().values())


def test_every_field_is_described() -> None:
    def check(schema: dict[str, object], path: str) -> None:
        properties = schema.get("properties")
        assert isinstance(properties, dict)
        for name, inner in properties.items():
            assert inner.get("description"), f"{path}.{name} has no description"
            if "properties" in inner:
                check(inner, f"{path}.{name}")
            elif name == "conditions":
                check(inner["items"], f"{path}.{name}[]")

    for crd in build_crds().values():
        (version,) = crd["spec"]["versions"]
        properties = version["schema"]["openAPIV3Schema"]["properties"]
        check(properties["spec"], "spec")
        check(properties["status"], "status")


@pytest.mark.parametrize("kind", [bytes, set[int], int | dict[str, str]])
def test_types_without_a_schema_are_refused(kind: type) -> None:
    with pytest.raises(UnsupportedTypeError):
        type_schema(msgspec.inspect.type_info(kind))
