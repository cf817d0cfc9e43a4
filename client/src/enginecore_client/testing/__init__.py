"""For tests: a fake engine, and the contract suite that every client and engine has to pass.

    from enginecore_client import SyncMPClient
    from enginecore_client.testing import FakeEngine

    with FakeEngine() as engine, SyncMPClient(engine.client_addresses, native=engine.native) as c:
        ...

The suite runs with `python -m enginecore_client.testing` (extra `[testing]`); the fake engine
needs nothing beside the client. docs/contract-suite.md is the guide to both.

What belongs here: what helps to test an application, an engine or a client. The client itself
never imports it.
"""

from enginecore_client.testing.fake_core import (
    FakeEngineCore,
    FakeEngineDiedError,
    FakeSettings,
    Running,
)
from enginecore_client.testing.fake_engine import FakeEngine

__all__ = ["FakeEngine", "FakeEngineCore", "FakeEngineDiedError", "FakeSettings", "Running"]
