"""launch_core_engines: engine processes for clients that are made by hand."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from enginecore_client._core.ranks import engine_ranks, started_ranks
from enginecore_client._core.spans import seconds_of
from enginecore_client._launch.command import EngineCommand, LaunchOptions, check_launch, command_of
from enginecore_client._launch.plan import LaunchPlan
from enginecore_client.errors import RequestRejectedError
from enginecore_wire.handshake import EngineAddresses

if TYPE_CHECKING:
    from enginecore_client._launch.coordinator import Coordinator
    from enginecore_client._launch.launcher import Launcher

DEFAULTS: Final = LaunchOptions()
STARTUP_SECONDS: Final = 600.0


@contextmanager
def launch_core_engines(
    engine_command: EngineCommand | Sequence[str],
    *,
    data_parallel_size: int = 1,
    lockstep: bool = False,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    launch: LaunchOptions = DEFAULTS,
    timeout: float = STARTUP_SECONDS,
) -> "Iterator[tuple[Launcher, Coordinator | None, EngineAddresses]]":
    """Run engine processes for as long as the context lasts.

    Yields:
        What manages the engines (`pids`, `restart`, `failure`), the coordinator if there is one,
        and the addresses that engines were told: a client binds `inputs[i]` and `outputs[i]`, and
        subscribes to `frontend_stats_publish_address`.

    Args:
        engine_command: how an engine is started.
        data_parallel_size: how many there are.
        lockstep: whether they step together; the coordinator then runs their waves.
        inputs: what client i binds for requests; if there are none, one is chosen (ipc).
        outputs: what client i binds for outputs; likewise.
        launch: what else there is to say.
        timeout: seconds that the coordinator may take to start.

    Raises:
        RequestRejectedError: something given is wrong; `field` names it.
        EngineStartupError: the coordinator or an engine ended at once.
        AddressError: the handshake's address cannot be bound.
    """
    from enginecore_client._launch.launcher import Launcher  # noqa: PLC0415 - rarely needed

    command = command_of(engine_command)
    check_launch(launch)
    seconds = seconds_of("timeout", timeout)
    if type(lockstep) is not bool:
        raise _wrong("lockstep", lockstep, "True or False")
    for field, addresses in (("inputs", inputs), ("outputs", outputs)):
        plain = isinstance(addresses, Sequence) and not isinstance(addresses, str | bytes)
        if not plain or not all(isinstance(address, str) for address in addresses):
            raise _wrong(field, addresses, "a list with an address of each client")
    if len(inputs) != len(outputs):
        raise _wrong("outputs", outputs, f"as many as inputs ({len(inputs)})")
    ranks = tuple(engine_ranks(data_parallel_size))
    started = started_ranks(launch.local_ranks, ranks)
    launcher = Launcher(LaunchPlan(command, started, ranks, data_parallel_size, lockstep, launch))
    try:
        launcher.start(
            list(inputs) or [launcher.path("input")], list(outputs) or [launcher.path("output")]
        )
        told = launcher.wait_addresses(seconds)
        coordinator = launcher.coordinator
        if coordinator is not None:
            published = coordinator.get_stats_publish_address()
            assert told.frontend_stats_publish_address == published
        yield launcher, coordinator, told
    finally:
        launcher.close()
        launcher.join()


def _wrong(field: str, value: object, allowed: str) -> RequestRejectedError:
    return RequestRejectedError(f"{field}: got {value!r}, allowed: {allowed}", field=field)
