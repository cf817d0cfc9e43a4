"""`python -m enginecore_client.testing …`: run the contract suite; arguments are pytest's."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest


def main(arguments: Sequence[str]) -> int:
    """Run the suite; return pytest's exit code."""
    suite = Path(__file__).with_name("test_contract.py")
    plugins = ("-p", "enginecore_client.testing.plugin", "-p", "no:cacheprovider")
    return int(pytest.main([*plugins, str(suite), *arguments]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
