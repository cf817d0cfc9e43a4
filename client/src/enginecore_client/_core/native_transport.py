"""A place for each rank that dials in, all at the two addresses that the client bound."""

from enginecore_client._addresses.addresses import BoundEndpoint, ClientAddresses, Endpoint
from enginecore_client._core.connection import Connection, Opening, Transport
from enginecore_client._core.native import NativeConnection
from enginecore_client._core.native_options import Facts
from enginecore_client.errors import ProtocolMismatchError
from enginecore_wire.dialects import confirm
from enginecore_wire.layouts import LayoutError


class NativeTransport(Transport):
    """Engines that dial in, one place per rank.

    Args:
        ranks: the ranks this client manages.
        facts: what the client is and knows.
        call_id: the call id of probes.

    Raises:
        ProtocolMismatchError: this client does not speak the layout of engines that run already.
    """

    def __init__(self, ranks: tuple[int, ...], facts: Facts, call_id: int) -> None:
        running = facts.options.running_facts
        if running is not None:
            try:
                confirm(facts.options.engine_version or None, str(running.get("vllm_version", "")))
            except LayoutError as error:
                raise ProtocolMismatchError(str(error)) from error
        self._ranks = ranks
        self._facts = facts
        self._probe_id = call_id

    def endpoints(self, addresses: ClientAddresses) -> tuple[Endpoint, ...]:
        """Return a place for each rank; all share the addresses that the client bound."""
        both = addresses.input_address[0], addresses.output_address[0]
        return tuple(BoundEndpoint(rank, *both) for rank in self._ranks)

    def open(self, opening: Opening) -> Connection:
        """Return a connection that waits for the engine's READY payload."""
        return NativeConnection(opening, self._facts, self._probe_id)

    def reopen_seconds(self, failures: int) -> float:  # noqa: ARG002 - the sockets stay bound
        """Wait for the next process at once: it may dial in at any time."""
        return 0.0
