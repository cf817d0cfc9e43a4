"""Addresses from the status of an EngineCluster, followed by a watch (extra `[kubernetes]`)."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from enginecore_client._addresses.addresses import ClientAddresses
from enginecore_client.errors import AddressError, ScalingNotAvailable
from enginecore_wire.wording import counted

GROUP: Final = "enginecore.dev"
VERSION: Final = "v1alpha1"
PLURAL: Final = "engineclusters"

_WATCH_SECONDS: Final = 240
"""The API server ends a watch after this long; the next one begins at once."""

_READ_SECONDS: Final = 300
_SCALE_SECONDS: Final = 10
_CONNECT_SECONDS: Final = 5
_LISTED: Final = 20
"""How many EngineClusters an error names."""

ABSENT_SECONDS: Final = 5.0
"""An EngineCluster that is not there this long is taken for one that does not exist."""

_RETRY_FIRST_SECONDS: Final = 0.5
_RETRY_MAX_SECONDS: Final = 30.0
_JOIN_SECONDS: Final = 5.0


class ClusterSource:
    """Follows the addresses in the status of one EngineCluster in a thread of its own.

    Args:
        name: the EngineCluster's name.
        namespace: its namespace.
        api_client: a kubernetes.client.ApiClient; by default the pod's service account, or
            else the current context of the kubeconfig.
        exposed: for a client outside the cluster: take `status.exposedAddresses`, which are there
            where `spec.transport.expose` is set, and not `status.clientAddresses`.

    Attributes:
        problem: why there are no addresses; "" while there are.
        failure: the error that the EngineCluster does not exist, once that is certain.

    Raises:
        AddressError: the `kubernetes` package is not installed.
    """

    def __init__(
        self,
        name: str,
        namespace: str = "default",
        api_client: Any = None,
        *,
        exposed: bool = False,
    ) -> None:
        from importlib.util import find_spec  # noqa: PLC0415 - few clients follow a cluster

        if find_spec("kubernetes") is None:
            raise AddressError(
                "reading addresses from an EngineCluster needs the kubernetes package: "
                "pip install 'enginecore-client[kubernetes]'"
            )
        self.problem = "not read yet"
        self.failure: AddressError | None = None
        self._absent = False
        self._absent_since: float | None = None
        self._name = name
        self._namespace = namespace
        self._exposed = exposed
        self._api_client = api_client
        self._news: ClientAddresses | None = None
        self._current: ClientAddresses | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._response: Any = None
        self._wake: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="enginecore-watch", daemon=True)

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to watch; `wake` is called from the watching thread."""
        self._wake = wake
        self._thread.start()

    def poll(self, now: float) -> ClientAddresses | None:
        """Return the addresses if they changed since the last poll."""
        if not self._absent:
            self._absent_since = self.failure = None
        elif self._absent_since is None:
            self._absent_since = now
        elif now - self._absent_since >= ABSENT_SECONDS:
            name = f"{self._namespace}/{self._name}"
            self.failure = AddressError(f"EngineCluster {name}: {self.problem}")
        with self._lock:
            news, self._news = self._news, None
        return news

    def close(self) -> None:
        """End the watch."""
        self._stop.set()
        with self._lock:
            response = self._response
        if response is not None:
            with contextlib.suppress(ValueError, OSError):
                response.shutdown()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)

    def scale(self, replicas: int) -> None:
        """Set how many engines the cluster has, by its /scale; blocks until that is written.

        Raises:
            ScalingNotAvailable: the API server refuses, or cannot be asked; the text says why.
        """
        from kubernetes import client, config  # noqa: PLC0415 - heavy, and an extra
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        own = self._api_client is None
        api_client: Any = None
        try:
            api_client = _load(client, config) if own else self._api_client
            client.CustomObjectsApi(api_client).patch_namespaced_custom_object_scale(
                GROUP,
                VERSION,
                self._namespace,
                PLURAL,
                self._name,
                {"spec": {"replicas": replicas}},
                _request_timeout=(_CONNECT_SECONDS, _SCALE_SECONDS),
                _content_type="application/merge-patch+json",
            )
        except (ApiException, HTTPError, OSError, config.ConfigException) as error:
            raise ScalingNotAvailable(
                f"cannot scale EngineCluster {self._namespace}/{self._name} to "
                f"{counted(replicas, 'engine')}: {_refusal(error)}"
            ) from error
        finally:
            if own and api_client is not None:
                api_client.rest_client.pool_manager.clear()

    def describe(self) -> str:
        """Return where the addresses come from, for an error's text."""
        text = f"EngineCluster {self._namespace}/{self._name}"
        return f"{text} ({self.problem})" if self.problem else text

    def _run(self) -> None:
        from kubernetes import client, config  # noqa: PLC0415 - heavy, and an extra
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        delay = _RETRY_FIRST_SECONDS
        own = self._api_client is None
        api_client: Any = None
        while not self._stop.is_set():
            try:
                if api_client is None:
                    api_client = _load(client, config) if own else self._api_client
                self._follow(client.CustomObjectsApi(api_client))
                delay = _RETRY_FIRST_SECONDS
            except (ApiException, HTTPError, OSError, AddressError, msgspec.MsgspecError) as error:
                self.problem = _reason(error)
            except config.ConfigException as error:
                self.problem = f"no access to Kubernetes: {error}"
            if self._stop.wait(delay):
                break
            delay = min(delay * 2, _RETRY_MAX_SECONDS) if self.problem else _RETRY_FIRST_SECONDS
        if own and api_client is not None:
            api_client.rest_client.pool_manager.clear()

    def _follow(self, api: Any) -> None:
        """Read the cluster once, then watch it until the watch ends."""
        body = msgspec.json.decode(self._request(api).read())
        for item in body.get("items", ()):
            self._take(item)
        if not body.get("items"):
            problem = f"it does not exist{self._others(api)}"
            self.problem, self._absent = problem, True
            raise AddressError(problem)
        self._absent = False
        version = body["metadata"]["resourceVersion"]
        response = self._request(api, watch=True, resource_version=version)
        with self._lock:
            self._response = response
        try:
            if self._stop.is_set():
                return
            for line in _lines(response):
                event = msgspec.json.decode(line)
                if event["type"] == "ERROR":
                    return
                if event["type"] == "DELETED":
                    self._offer(ClientAddresses((), ()))
                    raise AddressError("it was deleted")
                self._take(event["object"])
        finally:
            with self._lock:
                self._response = None
            response.close()

    def _others(self, api: Any) -> str:
        """Return which EngineClusters there are instead, if this account may know."""
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415 - as above

        try:
            listed = self._request(api, field_selector="", limit=_LISTED)
        except ApiException:
            return ""
        items = msgspec.json.decode(listed.read()).get("items", ())
        names = ", ".join(sorted(item["metadata"]["name"] for item in items))
        where = f"namespace {self._namespace}"
        return f"; {where} has {names}" if names else f", and {where} has no EngineCluster at all"

    def _request(self, api: Any, **options: Any) -> Any:
        options.setdefault("field_selector", f"metadata.name={self._name}")
        return api.list_namespaced_custom_object(
            GROUP,
            VERSION,
            self._namespace,
            PLURAL,
            timeout_seconds=_WATCH_SECONDS,
            _preload_content=False,
            _request_timeout=(_CONNECT_SECONDS, _READ_SECONDS),
            **options,
        )

    def _take(self, resource: dict[str, Any]) -> None:
        try:
            addresses = self._read(resource)
        except AddressError as error:
            self.problem = error.message
            return
        self.problem = ""
        self._offer(addresses)

    def _read(self, resource: dict[str, Any]) -> ClientAddresses:
        if not self._exposed:
            return ClientAddresses.from_status(resource)
        addresses = resource.get("status", {}).get("exposedAddresses")
        if not addresses:
            raise AddressError(
                "its status has no exposedAddresses: set spec.transport.expose to NodePort or "
                "LoadBalancer"
            )
        return ClientAddresses.from_dict(addresses)

    def _offer(self, addresses: ClientAddresses) -> None:
        with self._lock:
            if addresses == self._current:
                return
            self._current = self._news = addresses
        self._wake()


def _load(client: Any, config: Any) -> Any:
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        config.load_kube_config(client_configuration=configuration)
    return client.ApiClient(configuration)


def _lines(response: Any) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(amt=None, decode_content=False):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())


def _reason(error: Exception) -> str:
    if isinstance(error, AddressError):
        return error.message
    status = getattr(error, "status", None)
    if status == 403:
        return "forbidden: this account may not get, list and watch engineclusters"
    if status == 404:
        return "the API server knows no engineclusters; install the chart first"
    return f"the API server does not answer: {status or type(error).__name__}"


def _refusal(error: Exception) -> str:
    """Return why a scale was not written."""
    status = getattr(error, "status", None)
    if status == 403:
        return "forbidden: this account may not patch engineclusters/scale"
    if status == 404:
        return "it does not exist"
    try:
        return str(msgspec.json.decode(getattr(error, "body", "") or "")["message"])
    except (msgspec.DecodeError, TypeError, LookupError):
        return f"the API server does not answer: {status or type(error).__name__}"
