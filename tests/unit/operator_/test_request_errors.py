"""What the operator logs and tells of an API server that does not answer, or will not."""

from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from enginecore_operator.kube.client import KubeClient
from enginecore_operator.kube.errors import ApiError, UnreachableError, error_from_response
from enginecore_operator.kube.resources import SERVICES
from enginecore_operator.pod_warnings import FRESH_SECONDS, PodWarnings
from support.operator_objects import CoreStory


class Observer:
    """Takes what metrics would."""

    def observe_request(self, verb: str, kind: str, outcome: str, seconds: float) -> None:
        """Take note of nothing."""


class Server:
    """Answers every request with the next of these: an error, or a status and a body."""

    def __init__(self, *answers: Exception | tuple[int, bytes]) -> None:
        self.answers = list(answers)
        self.urls: list[str] = []

    def client(self) -> KubeClient:
        api: Any = SimpleNamespace(
            configuration=SimpleNamespace(host="http://api"),
            rest_client=SimpleNamespace(request=self._answer),
            update_params_for_auth=self._sign,
        )
        return KubeClient(api, observer=Observer(), may_write=lambda: True, clock=lambda: 0.0)

    async def _sign(self, *_: object) -> None:
        """Sign nothing."""

    async def _answer(self, _: str, url: str, **__: object) -> Any:
        self.urls.append(url)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        status, body = answer

        async def read() -> bytes:
            return body

        return SimpleNamespace(status=status, read=read)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError(), "no answer within 4 s"),
        (aiohttp.ServerDisconnectedError(), "Server disconnected"),
        (aiohttp.ClientError(), "ClientError"),
        (OSError(), "OSError"),
    ],
    ids=["late", "cut off", "without words", "without words of the system"],
)
async def test_a_request_that_fails_says_why(error: Exception, words: str) -> None:
    manifest = {"metadata": {"namespace": "lab", "name": "s"}}
    with pytest.raises(UnreachableError) as caught:
        await Server(error).client().create(SERVICES, manifest)
    assert str(caught.value) == f"POST /api/v1/namespaces/lab/services: {words}"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"reason": "InternalError", "message": "slow"}', "500 InternalError: slow"),
        (b'{"reason": "InternalError"}', "500 InternalError"),
        (b"{}", "500"),
        (b"not JSON", "500: not JSON"),
    ],
)  # fmt: skip
def test_an_error_status_says_what_it_has(body: bytes, words: str) -> None:
    assert str(error_from_response(500, body)) == words


def test_a_refusal_without_words_has_a_message() -> None:
    error = error_from_response(403, b'{"reason": "Forbidden"}')
    assert isinstance(error, ApiError)
    assert error.message == "403 Forbidden"


EVENT = (
    b'{"items": [{"reason": "FailedMount", "note": "no disk",'
    b' "regarding": {"uid": "uid-smollm-0-1"},'
    b' "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}]}'
)


async def test_warnings_are_read_once_in_a_while_for_a_namespace() -> None:
    server, time = Server((200, EVENT), (200, b'{"items": []}')), [0.0]
    warnings = PodWarnings(server.client(), lambda: time[0])
    story = CoreStory()
    story.plan()
    assert await warnings.latest([]) == {}
    assert server.urls == []
    assert await warnings.latest(story.pods) == {"uid-smollm-0-1": "FailedMount: no disk"}
    time[0] = FRESH_SECONDS - 0.1
    assert await warnings.latest(story.pods) == {"uid-smollm-0-1": "FailedMount: no disk"}
    (url,) = server.urls
    assert "/namespaces/lab/events?" in url
    assert "fieldSelector=type%3DWarning%2Cregarding.kind%3DPod" in url
    time[0] = FRESH_SECONDS
    assert await warnings.latest(story.pods) == {}


async def test_warnings_that_cannot_be_read_are_none(caplog: pytest.LogCaptureFixture) -> None:
    refusal = b'{"reason": "Forbidden", "message": "cannot list events"}'
    warnings = PodWarnings(Server((403, refusal)).client(), lambda: 0.0)
    story = CoreStory()
    story.plan()
    assert await warnings.latest(story.pods) == {}
    assert "events of namespace lab not read: 403 Forbidden: cannot list events" in caplog.text
