"""`PYTHONPATH=tests python -m chaos SECONDS [SEED]`: one run, and its report."""

import sys
import tempfile
from pathlib import Path
from random import SystemRandom

from chaos.run import run


def main(arguments: list[str]) -> int:
    """Run; return 1 if something was wrong."""
    seconds = float(arguments[0])
    seed = int(arguments[1]) if len(arguments) > 1 else SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        report = run(seconds, seed, Path(directory))
    print("\n".join(report.lines()))
    return 1 if report.verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
