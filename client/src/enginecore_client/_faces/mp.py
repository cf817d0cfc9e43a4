"""MPClient: what the clients of engines in other processes have in common."""

import os
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from enginecore_client._addresses.addresses import ClientAddresses
from enginecore_client._addresses.sources import advice_of, failure_of, scaler_of
from enginecore_client._core.books import Ids
from enginecore_client._core.core import ClientCore, CoreSettings
from enginecore_client._core.native_options import NativeOptions
from enginecore_client._core.ranks import LAST_RANK
from enginecore_client._core.routing import LoadScore, score
from enginecore_client._core.spans import seconds_of
from enginecore_client._faces.face import EngineCoreClient, make_metrics
from enginecore_client._faces.options import (
    LAUNCH_DEFAULTS,
    NATIVE_DEFAULTS,
    READY_TIMEOUT,
    check_kinds,
    check_min_ready,
    check_place,
    wrong,
)
from enginecore_client._faces.sequences import TextTokenizer
from enginecore_client._launch.command import EngineCommand, LaunchOptions
from enginecore_client._shell.background import BackgroundResources
from enginecore_client._shell.driver import Driver
from enginecore_client._shell.engines import Addresses, EngineChoice, find_engines
from enginecore_client._shell.pending import PendingMessages
from enginecore_client._shell.telling import Inbox
from enginecore_client.errors import (
    ClientClosedError,
    EngineCoreError,
    ScalingNotAvailable,
    StartupTimeoutError,
)
from enginecore_wire.handshake import engine_identity
from enginecore_wire.wording import counted

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from enginecore_client._launch.launcher import Launcher

Resources = TypeVar("Resources", bound=BackgroundResources)
Queue = TypeVar("Queue", bound=Inbox)


class MPClient(EngineCoreClient, Generic[Resources, Queue]):
    """A client of engines in other processes: the half that does not care how one waits.

    Args:
        make_resources: makes what waits for the sockets.
        outputs_queue: where `get_output` finds outputs.
        client_addresses: a dict (`input_address`, `output_address`, `stats_update_address`),
            the path of a JSON file that holds one and is followed, ClientAddresses, or a source.
            With `mode: bind` the addresses are the client's own, into which engines dial. None
            for a client that starts its engines itself.
        client_name: shown in the pods' logs and metrics.
        registry: a prometheus_client registry for metrics; None for none.
        client_count: how many clients share the engines, at least.
        client_index: this client's place among them, from 0.
        ready_timeout: seconds within which every engine must be ready, or `min_ready` of them.
        min_ready: how many engines must be ready before the client is; the others are used as
            soon as they are. None for all that have an address.
        retry: send requests that ended without a token again, by default.
        engine_ranks: the data-parallel ranks this client uses; None for all there are.
        tokenizer: gives outputs of `generate` their text and finds stop strings, such as
            enginecore_client.text.Tokenizer; None for token ids alone.
        load_score: what a request costs on an engine, of which the cheapest gets it; by default
            vLLM's. Its arguments are this client's unfinished requests there, what the engine
            reported last, and how many clients share the engines.
        lockstep: whether the engines step together, as ranks of a mixture of experts do.
        check_prompts: whether the token ids of prompts are held to the vocabulary before they are
            sent. False saves a third of a request's time where whoever calls has checked them; an
            engine server does so again, but an engine that dials in, or was started here, ends at
            the first that is wrong.
        native: what is known or wanted of engines that dial in.
        engine_command: how an engine is started, where `client_addresses` is None.
        launch: what else there is to say about that.
        client_key: the path of a file with this client's secret key, for engine servers with CURVE;
            None for the one that ENGINECORE_CLIENT_KEY_FILE names. It is read at every connection.
        data_parallel_size: how many engines dial in; None for 1, or as many as `engine_ranks`.

    Raises:
        AddressError: client_addresses are wrong.
        AuthenticationError: the client's key cannot be read, is refused, or missing.
        RequestRejectedError: an option is wrong; `field` names it.
    """

    def __init__(
        self,
        make_resources: Callable[[], Resources],
        outputs_queue: Queue,
        client_addresses: Addresses | None,
        *,
        client_name: str = "",
        registry: "CollectorRegistry | None" = None,
        client_count: int = 1,
        client_index: int = 0,
        ready_timeout: float = READY_TIMEOUT,
        min_ready: int | None = None,
        retry: bool = False,
        engine_ranks: Sequence[int] | None = None,
        tokenizer: TextTokenizer | None = None,
        load_score: LoadScore = score,
        lockstep: bool = False,
        check_prompts: bool = True,
        native: NativeOptions = NATIVE_DEFAULTS,
        engine_command: EngineCommand | Sequence[str] | None = None,
        launch: LaunchOptions = LAUNCH_DEFAULTS,
        client_key: str | os.PathLike[str] | None = None,
        data_parallel_size: int | None = None,
    ) -> None:
        check_kinds(
            client_name=client_name,
            registry=registry,
            retry=retry,
            lockstep=lockstep,
            check_prompts=check_prompts,
            tokenizer=tokenizer,
            load_score=load_score,
            client_key=client_key,
        )
        check_place(client_count, client_index)
        self._ready_timeout = seconds_of("ready_timeout", ready_timeout)
        check_min_ready(min_ready)
        ids = Ids()
        choice = EngineChoice(
            client_count,
            client_index,
            data_parallel_size,
            engine_ranks,
            lockstep,
            native,
            engine_command,
            launch,
            client_key,
        )
        engines = find_engines(client_addresses, choice, ids)
        settings = CoreSettings(
            client_name=client_name,
            client_index=client_index,
            client_count=client_count,
            lockstep=lockstep,
            load_score=load_score,
            check_prompts=check_prompts,
            advice=advice_of(engines.source),
        )
        self.client_count = client_count
        self.client_index = client_index
        self.outputs_queue = outputs_queue
        self._min_ready = min_ready
        self._retry = retry
        self._tokenizer = tokenizer
        self.resources = resources = make_resources()
        self._finalizer = weakref.finalize(self, resources)
        try:
            core = ClientCore(settings, ids, time.time, time.monotonic(), engines.transport)
            self._driver = resources.driver = Driver(
                core,
                engines.source,
                make_metrics(registry),
                outputs_queue,
                resources,
                resources.post,
                make_sockets=engines.make_sockets,
                launcher=engines.launcher,
            )
        except BaseException:
            self._finalizer()
            if engines.launcher is not None:
                engines.launcher.close()
            raise

    @property
    def engine_dead(self) -> bool:
        """Whether every engine died or was lost, and none is back."""
        return self.resources.engine_dead

    def ensure_alive(self) -> None:
        """Raise if no engine is left.

        Raises:
            EngineDeadError: `engine_dead` is true.
        """
        if self.engine_dead:
            raise self._driver.core.nobody()

    @property
    def client_addresses(self) -> ClientAddresses | None:
        """Return the addresses in use, None until there are some; in mode `bind` with the ports
        that the sockets got."""
        return self._driver.addresses

    @property
    def engine_manager(self) -> "Launcher | None":
        """Return what manages the engines that this client started, None if it started none."""
        return self._driver.launcher

    @property
    def engine_facts(self) -> dict[int, dict[str, Any]]:
        """Return what each engine in use says about itself, by rank: vLLM's READY payload."""
        return self._driver.core.facts()

    @property
    def engine_ranks_managed(self) -> list[int]:
        """Return the data-parallel ranks this client may use now, in order."""
        return self._driver.core.ranks()

    @property
    def core_engines(self) -> list[bytes]:
        """Return the identity of each rank this client may use: 2 bytes, little-endian."""
        return [engine_identity(rank) for rank in self.engine_ranks_managed]

    @property
    def core_engine(self) -> bytes:
        """Return the identity of the first of them.

        Raises:
            EngineNotReadyError: no engine has an address yet.
        """
        engines = self.core_engines
        if not engines:
            raise self._driver.core.nobody()
        return engines[0]

    @property
    def utility_results(self) -> dict[int, Any]:
        """Return the future of each utility call that waits for its reply, by call id."""
        return self._driver.core.calls.pending()

    @property
    def pending_messages(self) -> PendingMessages:
        """Return the messages with large buffers that ZMQ may still read: do not write into
        their tensors yet."""
        return self._driver.pending_messages

    @property
    def engines_running(self) -> bool:
        """Whether engines that step together are doing so, as far as this client knows."""
        return self._driver.core.waves.engines_running

    def dp_engines_running(self) -> bool:
        """Say whether engines that step together are doing so now; see EngineCoreClient."""
        return self.engines_running

    def close(self) -> None:
        """Close the client: what is unfinished ends with ClientClosedError. Idempotent."""
        self._finalizer()

    def shutdown(self, timeout: float | None = None) -> None:
        """Close the client; see EngineCoreClient."""
        launcher = self._driver.launcher
        if timeout is not None:
            seconds = seconds_of("timeout", timeout)
            if launcher is not None:
                launcher.stop_seconds = seconds
        self.close()

    def _scaler(self, size: int) -> Callable[[int], None]:
        """Return what sets the number of engines.

        Raises:
            ScalingNotAvailable: nothing can.
            RequestRejectedError: `size` is no number of engines.
        """
        if type(size) is not int or not 0 <= size <= LAST_RANK + 1:
            raise wrong("new_data_parallel_size", size, f"0 to {LAST_RANK + 1}")
        self._check_open()
        scale = scaler_of(self._driver.source)
        if scale is None:
            raise ScalingNotAvailable(
                f"cannot scale to {counted(size, 'engine')}: this client only has addresses; "
                "scale the EngineCluster (kubectl scale engineclusters/NAME --replicas=N), and "
                "a client that follows its addresses follows"
            )
        return scale

    def _check_open(self) -> None:
        self._driver.check_process()
        if self._driver.core.closed or not self._finalizer.alive:
            raise ClientClosedError("the client is closed; create another one")

    def _is_ready(self) -> bool:
        return self._driver.core.all_ready(self._min_ready)

    def _startup_error(self, *, expired: bool) -> EngineCoreError | None:
        """Return why waiting for engines ends without success, or None while it goes on."""
        launcher = self._driver.launcher
        if launcher is not None and launcher.failure is not None:
            return launcher.failure
        failure = failure_of(self._driver.source)
        if failure is not None:
            return failure.again()
        refusal = self._driver.core.refusal()
        if refusal is not None:
            return refusal
        if not expired:
            return None
        standing = self._driver.core.standing(self._driver.clock())
        ready = len(self._driver.core.facts())
        wanted = self._min_ready
        few = "not every engine" if wanted is None else f"less than min_ready={wanted} engines"
        remedy = f"; min_ready={ready} starts with those that are ready" if ready else ""
        return StartupTimeoutError(
            f"{few} of {self._driver.source.describe()} was ready within "
            f"{self._ready_timeout:g} s: {standing}{remedy}"
        )
