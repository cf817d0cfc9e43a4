"""Several engines of one client."""

from collections import Counter
from typing import Final

import pytest

from enginecore_client.errors import EngineDeadError, EngineNotReadyError, UtilityError
from enginecore_client.testing._waiting import eventually
from enginecore_client.testing.behaviours._registry import (
    OUTSIDE,
    PROMPT,
    SEVERAL,
    Ground,
    Running,
    own,
    request,
    shared,
    tokens,
)
from enginecore_client.testing.behaviours.loss import fails_every_call
from enginecore_client.testing.deployments import kill
from enginecore_client.testing.faces import params

SHARE: Final = 12
ROUNDS: Final = 2


@shared(ways=OUTSIDE, ranks=SEVERAL)
def rank_is_chosen(run: Running) -> None:
    """`data_parallel_rank` chooses the engine, and messages name the one they are from."""
    ranks = {f"{rank}-{i}": rank for rank in range(run.cell.ranks) for i in range(3)}
    for name, rank in ranks.items():
        run.face.add(request(name, 5, data_parallel_rank=rank))
    counts: Counter[str] = Counter()
    while counts.total() < 5 * len(ranks):
        message = run.face.get_output()
        for output in message.outputs:
            assert message.engine_index == ranks[output.request_id]
            counts[output.request_id] += len(output.new_token_ids)
    assert counts == dict.fromkeys(ranks, 5)


@shared(ways=OUTSIDE, ranks=SEVERAL)
def load_is_shared(run: Running) -> None:
    """Requests that name no rank are shared out evenly, but for what was known of the load."""
    for _ in range(ROUNDS):
        _let_old_loads_pass(run)
        names = [f"free-{i}" for i in range(SHARE * run.cell.ranks)]
        for name in names:
            run.face.add(request(name, run.engine.long_tokens))
        ranks: dict[str, int] = {}
        while len(ranks) < len(names):
            message = run.face.get_output()
            ranks.update({output.request_id: message.engine_index for output in message.outputs})
        run.drop(*names)
        counts = Counter(ranks.values())
        # What an engine did just before may still count for it once.
        assert all(abs(counts[rank] - SHARE) <= 1 for rank in range(run.cell.ranks)), counts


def _let_old_loads_pass(run: Running) -> None:
    """Return once the client has heard that every engine was busy, and is idle again."""
    names = [f"busy-{rank}" for rank in range(run.cell.ranks)]
    for rank, name in enumerate(names):
        run.face.add(request(name, run.engine.long_tokens, data_parallel_rank=rank))
    run.wait_seen(busy=True)
    run.drop(*names)
    run.wait_idle()
    run.wait_seen(busy=False)


@shared(ways=OUTSIDE, ranks=SEVERAL)
def call_goes_to_all_who_must_agree(run: Running) -> None:
    """A call goes to every engine unless it names one; where they must agree, they are held
    to it."""
    run.face.call("pause_scheduler", "keep", False, engine=1)
    with pytest.raises(UtilityError, match="disagree"):
        run.face.call("is_scheduler_paused")
    assert [run.face.call("is_scheduler_paused", engine=r) for r in (0, 1)] == [False, True]
    run.face.call("resume_scheduler", engine=1)
    assert run.face.call("is_scheduler_paused") is False


@own(ways=OUTSIDE, ranks=SEVERAL)
def one_engine_dies_alone(ground: Ground) -> None:
    """When one of several engines is killed, what it had fails within two seconds; the others
    lose nothing, and take what is new."""
    with ground.running() as run:
        last = run.cell.ranks - 1
        stream = run.face.generate(list(PROMPT), params(60), data_parallel_rank=0)
        outputs = [next(stream)]
        fails_every_call(run, last, lambda: kill(run.deployment.processes(last)))
        outputs += stream
        assert len(tokens(outputs)) == 60
        with pytest.raises((EngineDeadError, EngineNotReadyError)):
            run.read(4, data_parallel_rank=last)
        assert [len(run.read(4)) for _ in range(4)] == [4] * 4
        ready = "enginecore_client_engine_ready"
        eventually(lambda: [run.gauge(ready, rank) for rank in (0, last)] == [1, 0], "gauges")
