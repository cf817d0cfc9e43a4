"""Which engine gets the next request: vLLM's load score, ties by rotation."""

import zlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from enginecore_client.errors import RequestRejectedError
from enginecore_wire.coordination import EngineLoad

K = TypeVar("K", bound=Hashable)

IDLE = EngineLoad(0, 0, 0.0)
"""The load of an engine that nobody has reported about."""

KV_PRESSURE_WEIGHT = 6
KV_PRESSURE_FROM = 0.5


def score(in_flight: int, load: EngineLoad, client_count: int) -> float:
    """Return the cost of sending a request to an engine; lower is better.

    Reported counts lag behind, so they never fall below what this client alone has in
    flight, times the number of clients that presumably do the same. Waiting requests weigh
    more as the KV cache fills up: then they wait for memory.

    Args:
        in_flight: this client's unfinished requests there.
        load: what the engine reported last.
        client_count: how many clients share the engines.
    """
    result = float(max(client_count * in_flight, load.waiting + load.running))
    if load.waiting > 0:
        pressure = max(0.0, load.kv_usage - KV_PRESSURE_FROM)
        result += load.waiting * KV_PRESSURE_WEIGHT * pressure
    return result


LoadScore: TypeAlias = Callable[[int, EngineLoad, int], float]
"""A function with the parameters and the meaning of `score`."""


def keeper_of(query_key: str, engines: Sequence[K]) -> K:
    """Return the engine that keeps a late-interaction query, so that its documents go there too.

    Every client and vLLM's own come to the same one.

    Args:
        query_key: what query and documents have in common.
        engines: all there are, in rank order.
    """
    return engines[zlib.crc32(query_key.encode()) % len(engines)]


class Balancer(Generic[K]):
    """Chooses engines by score and remembers what it chose until the next report.

    What it chose counts as waiting only as far as it is unfinished: a coordinator stays silent
    for seconds while loads do not change, and short requests would pile up here meanwhile.

    Args:
        client_index: this client's place among those that share the engines.
        client_count: how many they are, at least.
        load_score: what a request costs on an engine.
    """

    def __init__(
        self, client_index: int = 0, client_count: int = 1, load_score: LoadScore = score
    ) -> None:
        self._score = load_score
        self._client_index = client_index
        self._client_count = client_count
        self._turn = 0
        self._loads: dict[K, EngineLoad] = {}
        self._chosen: dict[K, int] = {}

    def report(self, engine: K, load: EngineLoad) -> None:
        """Take over what an engine (or the coordinator) says about its load."""
        self._loads[engine] = load
        self._chosen[engine] = 0

    def forget(self, engine: K) -> None:
        """Drop what is known about an engine."""
        self._loads.pop(engine, None)
        self._chosen.pop(engine, None)

    def choose(self, in_flight: Mapping[K, int], client_count: int = 1) -> K:
        """Return the engine for the next request.

        Args:
            in_flight: the engines to choose among (in rank order) and this client's
                unfinished requests on each; not empty.
            client_count: how many clients share the engines now.

        Raises:
            RequestRejectedError: the caller's own score broke, or is no number.
        """
        count = max(client_count, self._client_count)
        engines = list(in_flight)
        first = len(engines) * self._client_index // self._client_count + self._turn
        order = (engines[(first + i) % len(engines)] for i in range(len(engines)))

        def cost(engine: K) -> float:
            load = self._loads.get(engine, IDLE)
            unreported = min(self._chosen.get(engine, 0), in_flight[engine])
            waiting = load.waiting + unreported * count
            return self._cost(in_flight[engine], load._replace(waiting=waiting), count)

        chosen = min(order, key=cost)
        self.chose(chosen)
        return chosen

    def _cost(self, in_flight: int, load: EngineLoad, client_count: int) -> float:
        cause: Exception | None = None
        try:
            found: Any = self._score(in_flight, load, client_count)
        except Exception as error:  # noqa: BLE001 - a caller's function; this request alone fails
            found = cause = error
        if isinstance(found, int | float):
            return found
        raise RequestRejectedError(
            f"load_score: got {found!r}, allowed: a number", field="load_score"
        ) from cause

    def chose(self, engine: K) -> None:
        """Take note of which engine gets the next request."""
        self._chosen[engine] = self._chosen.get(engine, 0) + 1
        self._turn += 1
