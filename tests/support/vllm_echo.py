"""What `--worker-extension-cls` adds to vLLM's workers: something for `collective_rpc` to call."""

from typing import Any


class Echo:
    """Methods of a worker."""

    def echo(self, value: Any) -> Any:
        return value
