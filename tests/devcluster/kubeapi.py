"""The few requests the dev cluster itself makes to its API server."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TIMEOUT_SECONDS = 10.0


def answers(url: str) -> bool:
    """True where a GET of an http URL on this machine succeeds."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT_SECONDS):
            return True
    except OSError:
        return False


@dataclass(frozen=True)
class KubeApi:
    """A connection's parameters.

    Attributes:
        server: URL of the API server.
        authority: PEM file of the authority that signed its certificate.
        token: bearer token of the caller.
    """

    server: str
    authority: Path
    token: str

    def get(self, path: str) -> Any:
        """Returns the JSON of a resource, None where it does not exist.

        Raises:
            OSError: the server cannot be reached or refused.
        """
        try:
            return json.loads(self._send("GET", path, None, ""))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def ready(self) -> bool:
        """True once the server says that it is ready."""
        try:
            return self._send("GET", "/readyz", None, "") == b"ok"
        except OSError:
            return False

    def apply(self, path: str, resource: dict[str, Any]) -> None:
        """Applies a resource on the server's side, as field manager ``devcluster``."""
        query = f"{path}?fieldManager=devcluster&force=true"
        self._send("PATCH", query, resource, "application/apply-patch+yaml")

    def patch(self, path: str, operations: list[dict[str, str]]) -> None:
        """Sends a JSON patch."""
        self._send("PATCH", path, operations, "application/json-patch+json")

    def _send(self, method: str, path: str, body: Any, content_type: str) -> bytes:
        request = urllib.request.Request(  # noqa: S310 - the server is always https
            self.server + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}"},
        )
        if content_type:
            request.add_header("Content-Type", content_type)
        context = ssl.create_default_context(cafile=str(self.authority))
        # The cluster is on this machine: a proxy of the environment is not asked.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
            content: bytes = response.read()
        return content
