"""The optional parameters of clients, and what their arguments must be."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict

from enginecore_client._core.native_options import NativeOptions
from enginecore_client._core.routing import LoadScore
from enginecore_client._faces.sequences import TextTokenizer
from enginecore_client._launch.command import EngineCommand, LaunchOptions
from enginecore_client.errors import RequestRejectedError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

READY_TIMEOUT: Final = 600.0
"""Seconds within which every engine must be ready, unless the caller says otherwise."""

NATIVE_DEFAULTS: Final = NativeOptions()
LAUNCH_DEFAULTS: Final = LaunchOptions()


class SharedOptions(TypedDict, total=False):
    """The optional parameters of every multiprocess client; MPClient says what they are."""

    client_name: str
    registry: "CollectorRegistry | None"
    ready_timeout: float
    min_ready: int | None
    retry: bool
    engine_ranks: Sequence[int] | None
    lockstep: bool
    check_prompts: bool
    tokenizer: TextTokenizer | None
    load_score: LoadScore
    native: NativeOptions
    engine_command: EngineCommand | Sequence[str] | None
    launch: LaunchOptions
    client_key: str | os.PathLike[str] | None


class ClientOptions(SharedOptions, total=False):
    """The same, and the client's place among others."""

    client_count: int
    client_index: int


class EngineOptions(ClientOptions, total=False):
    """The same, and how many engines there are."""

    data_parallel_size: int | None


_KINDS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "client_name": (lambda it: isinstance(it, str), "a string"),
    "model_name": (lambda it: isinstance(it, str), "a string"),
    "registry": (
        lambda it: it is None or hasattr(it, "register"),
        "a prometheus_client registry, or None",
    ),
    "retry": (lambda it: isinstance(it, bool), "True or False"),
    "lockstep": (lambda it: isinstance(it, bool), "True or False"),
    "check_prompts": (lambda it: isinstance(it, bool), "True or False"),
    "client_key": (
        lambda it: it is None or isinstance(it, str | os.PathLike),
        "the path of a file with a secret key, or None",
    ),
    "tokenizer": (
        lambda it: it is None or (hasattr(it, "complete") and hasattr(it, "reader")),
        "a tokenizer such as enginecore_client.text.Tokenizer.load(…), or None",
    ),
    "load_score": (callable, "a function of in_flight, load and client_count"),
}


def check_kinds(**options: Any) -> None:
    """Refuse options that are of another kind than they must be.

    Raises:
        RequestRejectedError: `field` names the first that is.
    """
    for field, value in options.items():
        fits, allowed = _KINDS[field]
        if not fits(value):
            raise wrong(field, value, allowed)


def retry_of(retry: bool | None, default: bool) -> bool:
    """Return whether a request is sent again; None for the client's default.

    Raises:
        RequestRejectedError: `retry` does not say.
    """
    if retry is None:
        return default
    check_kinds(retry=retry)
    return retry


def check_place(client_count: int, client_index: int) -> None:
    """Refuse a place among clients that cannot be.

    Raises:
        RequestRejectedError: `field` names the culprit.
    """
    if type(client_count) is not int or client_count < 1:
        raise wrong("client_count", client_count, "1 or more, the number of clients")
    if type(client_index) is not int or not 0 <= client_index < client_count:
        raise wrong(
            "client_index", client_index, f"0 to {client_count - 1}; raise client_count if need be"
        )


def check_min_ready(count: int | None) -> None:
    """Refuse a number of engines to wait for that cannot be.

    Raises:
        RequestRejectedError: it cannot.
    """
    if count is not None and (type(count) is not int or count < 1):
        raise wrong("min_ready", count, "1 or more engines, or None for all")


def check_ids(request_ids: Sequence[str]) -> None:
    """Refuse what are no request ids; a single string would be taken for its characters.

    Raises:
        RequestRejectedError: they are none.
    """
    plain = isinstance(request_ids, Collection) and not isinstance(request_ids, str | bytes)
    if not plain or not all(isinstance(name, str) for name in request_ids):
        raise wrong("request_ids", request_ids, "a list of request ids")


def wrong(field: str, value: Any, allowed: str) -> RequestRejectedError:
    """Return the error for an argument that is wrong."""
    return RequestRejectedError(f"{field}: got {value!r}, allowed: {allowed}", field=field)
