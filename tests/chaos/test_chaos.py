"""Everything goes wrong at once: each request still ends exactly once, and as it may."""

from pathlib import Path
from random import SystemRandom

import pytest

from chaos.run import run

FEW_KILLS = 5
MANY_SECONDS = 600
MANY_KILLS = 100


@pytest.mark.counted(short=60, full=MANY_SECONDS)
@pytest.mark.timeout(MANY_SECONDS + 300)
def test_no_request_is_lost_doubled_or_forgotten(
    counted: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = run(counted, SystemRandom().randrange(1 << 32), tmp_path)
    with capsys.disabled():
        print("", *report.lines(), sep="\n")
    assert report.verdict.violations == [], f"seed {report.seed}"
    assert report.kills >= (MANY_KILLS if counted >= MANY_SECONDS else FEW_KILLS)
    assert report.verdict.endings["finished"] > report.faults.total()
