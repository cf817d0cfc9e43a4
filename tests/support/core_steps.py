"""What tests of ClientCore do again and again."""

from typing import Any

from enginecore_client import ClientClosedError, EngineCoreRequest, SamplingParams
from support.memory_link import MemoryLink

SINK = object()
CLOSED = ClientClosedError("closed")


def request(name: str = "r", **fields: Any) -> EngineCoreRequest:
    return EngineCoreRequest(name, [1, 2], sampling_params=SamplingParams(max_tokens=9), **fields)


def add(link: MemoryLink, name: str = "r", sink: Any = SINK, rank: int | None = None, **options):
    record = link.core.requests.add(
        request(name, data_parallel_rank=rank), sink, link.now, **options
    )
    link.run()
    return record


def of(kind: type, events: list[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]
