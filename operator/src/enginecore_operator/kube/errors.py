"""Errors of the API server, told apart by what to do about them.

KubeError
├── NotLeaderError      nothing was sent: another process may lead by now
├── UnreachableError    no answer, or the server is not able to give one: try again
│   └── OverloadedError     the server said so itself
└── ApiError            the server answered with an error
    ├── NotFoundError
    ├── AlreadyExistsError
    ├── ConflictError   somebody else changed the object: read it again
    ├── ExpiredError    a list or watch has to start anew
    ├── TerminatingError    the namespace is being deleted
    └── RefusedError    the request itself is refused: nothing helps but another spec,
                        quota or permission
"""

from typing import Final

import msgspec


class KubeError(Exception):
    """Base of everything the kube layer raises."""


class NotLeaderError(KubeError):
    """A write was held back, as the Lease may belong to another process."""


class UnreachableError(KubeError):
    """The API server gave no answer or is overloaded; the same request may work later."""


def _sentence(status: int, reason: str, message: str) -> str:
    head = f"{status} {reason}".rstrip()
    return f"{head}: {message}" if message else head


class _AnsweredError(KubeError):
    """What the API server answered: a status, and maybe what it says of it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(_sentence(status, reason, message))
        self.status = status
        self.reason = reason
        self.message = message or str(self)


class OverloadedError(_AnsweredError, UnreachableError):
    """The API server, or what it asks, is not able to answer now."""


class ApiError(_AnsweredError):
    """The API server answered with an error status."""


class NotFoundError(ApiError):
    """There is no such object."""


class AlreadyExistsError(ApiError):
    """An object of this name exists."""


class ConflictError(ApiError):
    """The object is not the one, or not the version, that was expected."""


class ExpiredError(ApiError):
    """The server no longer knows the resourceVersion."""


class TerminatingError(ApiError):
    """The namespace is being deleted."""


class RefusedError(ApiError):
    """The server refuses this request: forbidden, over quota, or invalid."""


class _Cause(msgspec.Struct, frozen=True):
    reason: str = ""


class _Details(msgspec.Struct, frozen=True):
    causes: list[_Cause] = []


class _Status(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""
    details: _Details = _Details()


_BY_STATUS: Final[dict[int, type[ApiError]]] = {
    400: RefusedError,
    401: RefusedError,
    403: RefusedError,
    404: NotFoundError,
    409: ConflictError,
    410: ExpiredError,
    413: RefusedError,
    422: RefusedError,
}


def error_from_response(status: int, body: bytes) -> KubeError:
    """Build the error of a response with an error status."""
    try:
        told = msgspec.json.decode(body, type=_Status)
    except msgspec.MsgspecError:
        told = _Status(message=body[:200].decode(errors="replace"))
    if status == 429 or status >= 500:
        return OverloadedError(status, told.reason, told.message)
    kind = _BY_STATUS.get(status, ApiError)
    if status == 409 and told.reason == "AlreadyExists":
        kind = AlreadyExistsError
    if any(cause.reason == "NamespaceTerminating" for cause in told.details.causes):
        kind = TerminatingError
    return kind(status, told.reason, told.message)
