"""`python -m enginecore_client.testing …`: run the contract suite; arguments are pytest's."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

TIMEOUT_SECONDS: Final = 120
"""An engine or a client that does not answer fails one test, not all."""


def main(arguments: Sequence[str]) -> int:
    """Run the suite; return pytest's exit code."""
    suite = Path(__file__).with_name("test_contract.py")
    usual = (
        "-p", "enginecore_client.testing.plugin", "-p", "no:cacheprovider",
        f"--timeout={TIMEOUT_SECONDS}",
    )  # fmt: skip
    return int(pytest.main([*usual, str(suite), *arguments]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
