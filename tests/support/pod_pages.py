"""Pages and settings of a pod in tests."""

import urllib.error
import urllib.request

from enginecore_wire.contract import LivenessConfig
from support.pod import Pod


def http(pod: Pod, path: str, *, method: str = "GET", token: str | None = None) -> tuple[int, str]:
    """Return status code and body of a page of the pod."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    url = f"http://127.0.0.1:{pod.http_port}{path}"
    message = urllib.request.Request(url, headers=headers, method=method)
    try:
        with urllib.request.urlopen(message, timeout=5) as answer:  # noqa: S310 - loopback
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def short(**seconds: float) -> LivenessConfig:
    """Return timers for tests: grace 0.3 s unless told."""
    return LivenessConfig(**({"grace_seconds": 0.3} | seconds))


def sample(pod: Pod, name: str) -> float:
    """Return the value of a series, named as it is written; the engine's labels may be missing."""
    wanted = _parts(name)
    for line in pod.metrics().splitlines():
        series, _, value = line.rpartition(" ")
        if series and not series.startswith("#"):
            found = _parts(series)
            if found[0] == wanted[0] and found[1] - _of_engine(pod) <= wanted[1] <= found[1]:
                return float(value)
    raise AssertionError(f"no series {name}")


def _parts(series: str) -> tuple[str, frozenset[str]]:
    """Return the name and the labels of a series."""
    name, _, labels = series.partition("{")
    return name, frozenset(labels.rstrip("}").split(",")) - {""}


def _of_engine(pod: Pod) -> frozenset[str]:
    config = pod.config
    model = config.model.served_name or config.model.path
    return frozenset({f'engine="{config.rank}"', f'model_name="{model}"'})
