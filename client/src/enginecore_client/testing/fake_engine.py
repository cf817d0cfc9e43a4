"""FakeEngine: an engine without a model in a thread of this process, for tests of applications."""

import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginecore_client import ClientAddresses, EngineCommand, NativeOptions
from enginecore_client.testing.fake_core import (
    DEFAULT_SETTINGS,
    FakeEngineCore,
    FakeEngineDiedError,
    FakeSettings,
)
from enginecore_client.testing.fake_links import FakeLinks
from enginecore_client.testing.fake_loop import FakeEngineVanishedError, FakeLoop, serve
from enginecore_wire.handshake import EngineAddresses

JOIN_SECONDS = 10.0


class FakeEngine:
    """One engine that dials a client, in a thread of its own; a context manager.

    Token i of a request is `prompt[i % len(prompt)]`, unless `core.answer` says otherwise.
    Everything about `core` may be changed while it runs.

    Args:
        settings: what it is; `fields` of it may be given alone.
        rank: its data-parallel rank.
        client_addresses: whom to dial, as a client in mode `bind` takes it; None for addresses of
            its own, which `client_addresses` then tells.
        handshake: address of a launcher (`tcp://host:port`) that says whom to dial instead.
        local: what it says in that handshake: whether the launcher is on this machine.

    Attributes:
        core: the engine.
    """

    def __init__(
        self,
        settings: FakeSettings = DEFAULT_SETTINGS,
        *,
        rank: int = 0,
        client_addresses: Mapping[str, Any] | ClientAddresses | None = None,
        handshake: str | None = None,
        local: bool = True,
        **fields: Any,
    ) -> None:
        self.core = FakeEngineCore(settings, **fields)
        self._directory: str | None = None
        self._handshake = handshake
        self._local = local
        self._addresses = self._whom(client_addresses)
        self._links = FakeLinks(rank)
        self._loop = FakeLoop(self.core, self._links)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"fake engine {rank}", daemon=True)
        self._thread.start()

    def __enter__(self) -> "FakeEngine":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @staticmethod
    def command(*options: str) -> EngineCommand:
        """Return the command of a fake engine as a process, for a client that starts engines.

        Args:
            options: of `python -m enginecore_client.testing.fake_process`.
        """
        words = (
            sys.executable, "-m", "enginecore_client.testing.fake_process", "--local",
            "--data-parallel-address", "{address}", "--data-parallel-rpc-port", "{port}",
            "--data-parallel-rank", "{rank}", *options,
        )  # fmt: skip
        return EngineCommand(words, local=True)

    @property
    def client_addresses(self) -> dict[str, Any]:
        """Return what a client takes to be dialled by this engine.

        Raises:
            LookupError: a launcher knows them.
        """
        if self._addresses is None:
            raise LookupError("the addresses are the launcher's, as `handshake` was given")
        return {
            "mode": "bind",
            "input_address": self._addresses.input_address[0],
            "output_address": self._addresses.output_address[0],
        }

    @property
    def native(self) -> NativeOptions:
        """Return what a client has to be told of this engine (its option `native`)."""
        settings = self.core.settings
        return NativeOptions(
            vocab_size=settings.vocab_size, hidden_size=settings.hidden_size, model_name="fake"
        )

    @property
    def alive(self) -> bool:
        """Whether it serves, or will once it is ready."""
        return self._thread.is_alive()

    def die(self) -> None:
        """Have the engine break: it says so to its clients, and is gone."""
        self._fail(FakeEngineDiedError("told to"))

    def vanish(self) -> None:
        """Have the engine gone without a word, as if its process was killed."""
        self._fail(FakeEngineVanishedError("told to"))

    def freeze(self) -> None:
        """Have it read, compute and send nothing until `thaw`; its connections stay."""
        self._loop.frozen = True

    def thaw(self) -> None:
        """Go on."""
        self._loop.frozen = False

    def close(self) -> None:
        """End it in order: what is unfinished ends with ABORT. Idempotent."""
        self._loop.stopping = True
        self._end()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _fail(self, error: Exception) -> None:
        self._loop.failure = error
        self._end()

    def _end(self) -> None:
        self._stopped.set()
        self._links.wake()
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        if self._open():
            serve(self._loop)
        else:
            self._links.close(linger=0)

    def _open(self) -> bool:
        """Load and dial; say whether it came to that."""
        told = self._told()
        if told is None or self._stopped.wait(self.core.settings.load_seconds):
            return False
        return self._links.open(told, self.core.settings)

    def _told(self) -> EngineAddresses | None:
        if self._addresses is not None:
            given = self._addresses
            return EngineAddresses(list(given.input_address), list(given.output_address))
        assert self._handshake is not None
        return self._links.say_hello(self._handshake, local=self._local)

    def _whom(self, given: Mapping[str, Any] | ClientAddresses | None) -> ClientAddresses | None:
        if isinstance(given, ClientAddresses):
            return given
        if given is not None:
            return ClientAddresses.from_dict(given)
        if self._handshake is not None:
            return None
        self._directory = tempfile.mkdtemp(prefix="enginecore-fake-")
        place = Path(self._directory)
        return ClientAddresses((f"ipc://{place}/input",), (f"ipc://{place}/output",), mode="bind")
