"""What importing the client costs and what it pulls in."""

import enginecore_client
from bench.client_import import DEPENDENCIES, FLOOR, MEMORY_BAR, dependencies, measure


def test_import_is_light() -> None:
    floor, _, _ = measure(FLOOR)
    seconds, memory, modules = measure()
    assert seconds <= 2 * floor
    assert memory <= MEMORY_BAR
    heavy = {"torch", "numpy", "kubernetes", "gguf", "tokenizers", "jinja2", "prometheus_client"}
    assert not modules & heavy
    rarely_needed = {"pathlib", "ipaddress", "ctypes", "urllib"}
    assert not modules & rarely_needed


def test_three_dependencies() -> None:
    assert dependencies() == DEPENDENCIES


def test_public_names_are_there_and_nothing_else_is_public() -> None:
    missing = [name for name in enginecore_client.__all__ if not hasattr(enginecore_client, name)]
    assert missing == []
    public = {
        name
        for name, value in vars(enginecore_client).items()
        if not name.startswith("_") and type(value).__name__ != "module"
    }
    assert public == set(enginecore_client.__all__)
