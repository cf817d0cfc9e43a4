"""python -m enginecore_curve FILE."""

from pathlib import Path

import pytest

from enginecore_curve.__main__ import EXIT_USAGE, main
from enginecore_curve.keys import read_key_pair


def test_the_secret_goes_to_the_file_and_the_public_key_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "key"
    assert main([str(file)]) == 0
    pair = read_key_pair(file)
    assert capsys.readouterr().out == f"{pair.public}\n"
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_there_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "key"
    file.write_text("mine")
    assert main([str(file)]) == 1
    assert file.read_text() == "mine"
    assert "File exists" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--help"], ["a", "b"]])
def test_anything_else_is_told_how(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == EXIT_USAGE
    assert "usage: python -m enginecore_curve FILE" in capsys.readouterr().err
