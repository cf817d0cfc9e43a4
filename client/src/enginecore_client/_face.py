"""What both clients' public faces share."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from enginecore_client._core import ClientCore
from enginecore_client._metrics import Metrics, NoMetrics
from enginecore_client._sources import AddressSource
from enginecore_client.errors import (
    EngineCoreError,
    ProtocolMismatchError,
    RequestRejectedError,
    ScalingNotAvailable,
    StartupTimeoutError,
)
from enginecore_wire.requests import EngineCoreRequest, OutputKind, SamplingParams

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

READY_TIMEOUT: Final = 600.0
"""Seconds within which every engine must be ready, unless the caller says otherwise."""


def make_metrics(registry: "CollectorRegistry | None") -> NoMetrics:
    """Return the metrics of a client on `registry`, or none."""
    return NoMetrics() if registry is None else Metrics(registry)


def build_request(
    prompt_token_ids: Sequence[int],
    sampling_params: SamplingParams | None,
    request_id: str | None,
    data_parallel_rank: int | None,
) -> EngineCoreRequest:
    """Return the request that `generate` stands for."""
    params = sampling_params or SamplingParams(output_kind=OutputKind.DELTA)
    if not isinstance(params, SamplingParams):
        raise RequestRejectedError(
            f"sampling_params: expected SamplingParams, got {type(params).__name__}",
            field="sampling_params",
        )
    try:
        prompt = list(prompt_token_ids)
    except TypeError as error:
        raise RequestRejectedError(
            f"prompt_token_ids: expected token ids, got {type(prompt_token_ids).__name__}",
            field="prompt_token_ids",
        ) from error
    return EngineCoreRequest(
        request_id="" if request_id is None else request_id,
        prompt_token_ids=prompt,
        sampling_params=params,
        data_parallel_rank=data_parallel_rank,
    )


def startup_error(
    core: ClientCore, source: AddressSource, timeout: float, now: float, *, expired: bool
) -> EngineCoreError | None:
    """Return why waiting for engines ends without success, or None while it goes on."""
    refusal = core.refusal()
    if refusal is not None:
        return ProtocolMismatchError(f"an engine refuses this client: {refusal}")
    if not expired:
        return None
    missing = "; ".join(core.missing(now))
    return StartupTimeoutError(
        f"not every engine of {source.describe()} was ready within {timeout:g} s: {missing}"
    )


class NoScaling:
    """What a client that only has addresses says about scaling."""

    def scale_elastic_ep(self, new_data_parallel_size: int) -> NoReturn:
        """Refuse: addresses alone do not say who owns the engines.

        Raises:
            ScalingNotAvailable: always.
        """
        raise ScalingNotAvailable(
            f"cannot scale to {new_data_parallel_size} engines: this client only has addresses; "
            "scale the EngineCluster (kubectl scale engineclusters/NAME --replicas=N), "
            "and a client that follows its addresses follows"
        )
