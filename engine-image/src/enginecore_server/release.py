"""Which vLLM release the engine is going to be, where that can be known before it says so.

Engines say it in READY from vLLM 0.23 on. In a stock image the server runs in vLLM's own Python,
which knows what is installed there.
"""

from collections.abc import Callable
from importlib import metadata

import msgspec

from enginecore_wire.contract import ServerConfig
from enginecore_wire.layouts import LayoutError, layout_of


def installed_release() -> str:
    """Return the version of the vLLM in this Python, "" if there is none."""
    try:
        return metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return ""


def with_release(
    config: ServerConfig, installed: Callable[[], str] = installed_release
) -> ServerConfig:
    """Return settings whose runtime has a version, if it is vLLM and that can be told.

    What the settings say themselves stays; a version that names no release is left to READY.
    """
    if config.runtime.type != "vllm" or config.runtime.version:
        return config
    version = installed()
    try:
        layout_of(version)
    except LayoutError:
        return config
    runtime = msgspec.structs.replace(config.runtime, version=version)
    return msgspec.structs.replace(config, runtime=runtime)
