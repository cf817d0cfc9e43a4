"""The launcher's half of vLLM's start-up handshake with its engines. No sockets.

HELLO gets INIT, READY ends it. The desk stays open: an engine that is started again says HELLO
again, and is answered once the one before it is gone.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from enginecore_wire.handshake import (
    HELLO,
    READY,
    EngineAddresses,
    EngineInit,
    EngineStatus,
    engine_rank,
)


class Stage(StrEnum):
    """How far an engine has come, as an error's text says it."""

    NEW = "no HELLO yet"
    LOADING = "INIT sent, loading"
    READY = "handshake done"


class HandshakeRefusedError(ValueError):
    """A message that gets no answer; `rank` is the engine's, None if it is nobody's."""

    def __init__(self, message: str, rank: int | None) -> None:
        super().__init__(message)
        self.message = message
        self.rank = rank


class Desk:
    """Answers the engines of some ranks.

    Args:
        ranks: who is expected; True for engines that say they were launched here.
        addresses: what INIT tells them.
        parallel_config: likewise.
    """

    def __init__(
        self,
        ranks: Mapping[int, bool],
        addresses: EngineAddresses,
        parallel_config: Mapping[str, Any],
    ) -> None:
        self.stages = dict.fromkeys(ranks, Stage.NEW)
        self._local = dict(ranks)
        self._init = msgspec.msgpack.encode(EngineInit(addresses, dict(parallel_config)))
        self._hashes: dict[int, str] = {}

    def receive(self, identity: bytes, body: bytes) -> tuple[int, bytes | None]:
        """Return whose message it is, and the answer to it if there is one.

        Raises:
            HandshakeRefusedError: it is not the next message of an engine that is expected.
        """
        rank = self._rank(identity)
        try:
            status = _STATUS.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise HandshakeRefusedError(f"unreadable handshake message: {error}", rank) from error
        self._check_flags(rank, status)
        stage = self.stages[rank]
        if status.status == HELLO and stage is not Stage.READY:
            # Its predecessor is gone: the socket hears nobody under a name that is in use.
            self.stages[rank] = Stage.LOADING
            return rank, self._init
        if status.status == HELLO:
            raise HandshakeRefusedError(
                f"HELLO of rank {rank}, whose engine is in use; give each engine its own rank", rank
            )
        if status.status == READY and stage is Stage.LOADING:
            self._check_hash(rank, status.parallel_config_hash)
            self.stages[rank] = Stage.READY
            return rank, None
        raise HandshakeRefusedError(
            f"status {status.status!r} of rank {rank} is out of order: {stage}", rank
        )

    def gone(self, rank: int) -> None:
        """Take note that the engine of a rank is gone; the next one may say HELLO."""
        if rank in self.stages:
            self.stages[rank] = Stage.NEW
            self._hashes.pop(rank, None)

    def _rank(self, identity: bytes) -> int:
        rank = engine_rank(identity)
        if rank is None:
            raise HandshakeRefusedError(
                f"identity {identity.hex()} is not a rank in 2 bytes, little-endian", None
            )
        if rank not in self.stages:
            raise HandshakeRefusedError(
                f"rank {rank} is not expected; expected are {sorted(self.stages)}", None
            )
        return rank

    def _check_flags(self, rank: int, status: EngineStatus) -> None:
        local = self._local[rank]
        if (status.local, status.headless) != (local, not local):
            raise HandshakeRefusedError(
                f"rank {rank} says local={status.local}, headless={status.headless}; expected is "
                f"local={local}, headless={not local}: say so in its EngineCommand, or start it "
                "the other way",
                rank,
            )

    def _check_hash(self, rank: int, parallel_hash: str | None) -> None:
        for other, known in self._hashes.items():
            if parallel_hash is not None and known != parallel_hash:
                raise HandshakeRefusedError(
                    f"rank {rank} runs with another parallel configuration than rank {other} "
                    f"({parallel_hash} and {known}); give all engines the same options",
                    rank,
                )
        if parallel_hash is not None:
            self._hashes[rank] = parallel_hash


_STATUS = msgspec.msgpack.Decoder(EngineStatus)
