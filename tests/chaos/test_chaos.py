"""Everything goes wrong at once: each request still ends exactly once, and as it may. Pods that
leave in order cost nobody anything."""

from pathlib import Path
from random import SystemRandom

import pytest

from chaos.run import roll, run

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
"""Of the network between pods and clients, which run in processes of their own."""

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
    assert report.verdict.endings["finished LENGTH"] > report.faults.total()


@pytest.mark.counted(short=3, full=20)
@pytest.mark.timeout(600)
def test_no_request_fails_while_pods_are_replaced(
    counted: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = roll(int(counted), SystemRandom().randrange(1 << 32), tmp_path)
    with capsys.disabled():
        print("", *report.lines(), sep="\n")
    assert report.verdict.violations == [], f"seed {report.seed}"
    assert set(report.verdict.endings) == {"finished LENGTH"}, f"seed {report.seed}"
