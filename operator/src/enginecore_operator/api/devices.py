"""Devices, processors and memory of a container."""

# ruff: noqa: RUF012 - msgspec makes a new list or dict of an empty default for each object

from typing import Annotated, ClassVar

from msgspec import Meta

from enginecore_operator.api import schema
from enginecore_operator.api.quantity import parse_quantity
from enginecore_operator.api.schema import Rule, Spec

Quantity = int | Annotated[str, Meta(pattern=schema.QUANTITY_PATTERN, max_length=64)]


class Accelerator(Spec, frozen=True):
    """Devices of the engine container, as an extended resource."""

    name: Annotated[
        str,
        Meta(
            min_length=3,
            max_length=253,
            pattern=r"^[a-z0-9.-]+/[A-Za-z0-9_.-]+$",
            description="Name of the extended resource.",
        ),
    ] = "nvidia.com/gpu"
    count: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=64,
                description="Devices per engine; absent: parallelism.tensor times "
                "parallelism.pipeline; 0: CPU only.",
            ),
        ]
        | None
    ) = None


ResourceList = Annotated[dict[str, Quantity], Meta(max_length=32)]


class Resources(Spec, frozen=True):
    """Requests and limits of the engine container."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.requests) || !has(self.limits) || self.requests.all(name, "
            "!(name in self.limits) || quantity(string(self.requests[name]))"
            ".compareTo(quantity(string(self.limits[name]))) <= 0)",
            "must not be larger than limits",
            ".requests",
            lambda resources: all(
                parse_quantity(wanted) <= parse_quantity(resources.limits[name])
                for name, wanted in resources.requests.items()
                if name in resources.limits
            ),
        ),
    )
    requests: Annotated[ResourceList, Meta(description="What the scheduler reserves.")] = {}
    limits: Annotated[ResourceList, Meta(description="What the container may use at most.")] = {}
