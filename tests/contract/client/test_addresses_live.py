"""Addresses that change while a client lives."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from enginecore_client import (
    AddressError,
    AsyncMPClient,
    EngineNotReadyError,
    FileSource,
    StartupTimeoutError,
    SyncMPClient,
)
from support.eventually import eventually_async
from support.faces import params
from support.protocol_peer import ProtocolPeer

PROMPT = [7, 11, 13]
PARAMS = params(3)


def addresses(*peers: ProtocolPeer) -> dict[str, Any]:
    return {
        "input_address": [peer.input_address for peer in peers],
        "output_address": [peer.output_address for peer in peers],
    }


class ConfigMapVolume:
    """A file the way kubelet writes it: a link to a directory that is swapped as a whole."""

    def __init__(self, root: Path, content: dict[str, Any]) -> None:
        self.path = root / "addresses.json"
        self._root = root
        self._version = 0
        self.write(content)
        self.path.symlink_to(Path("..data") / "addresses.json")

    def write(self, content: Any) -> None:
        self._version += 1
        directory = self._root / f"..version-{self._version}"
        directory.mkdir()
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / "addresses.json").write_text(text)
        link = self._root / "..next"
        link.symlink_to(directory.name)
        os.replace(link, self._root / "..data")


def ranks(client: AsyncMPClient) -> list[int]:
    fleet = client._driver.core._fleet
    return [fleet.rank(connection) for connection in fleet.working()]


async def test_file_adds_and_removes_engines(tmp_path: Path) -> None:
    with ProtocolPeer(0) as one, ProtocolPeer(1) as two:
        volume = ConfigMapVolume(tmp_path, addresses(one))
        async with AsyncMPClient(str(volume.path)) as client:
            assert ranks(client) == [0]
            volume.write(addresses(one, two))
            await eventually_async(lambda: ranks(client) == [0, 1], "rank 1 is there")
            two.streaming = False
            stream = client.generate(PROMPT, PARAMS, data_parallel_rank=1)
            await eventually_async(lambda: len(two.adds) == 1)
            volume.write("{ broken")
            source = client._driver.source
            await eventually_async(lambda: source.problem, "it was read")  # type: ignore[attr-defined]
            assert ranks(client) == [0, 1]
            volume.write(addresses(one))
            await eventually_async(lambda: ranks(client) == [0], "rank 1 is gone")
            assert two.byes == 0, "its stream goes on"
            two.streaming = True
            assert [t async for o in stream for t in o.new_token_ids] == PROMPT
            await eventually_async(lambda: two.byes == 1, "its stream ended")


async def test_a_rank_moves_to_another_address(tmp_path: Path) -> None:
    with ProtocolPeer(0, epoch=1) as old, ProtocolPeer(0, epoch=2) as new:
        volume = ConfigMapVolume(tmp_path, addresses(old))
        async with AsyncMPClient(FileSource(volume.path)) as client:
            old.streaming = False
            stream = client.generate(PROMPT, PARAMS)
            await eventually_async(lambda: len(old.adds) == 1)
            volume.write(addresses(new))
            await eventually_async(lambda: len(new.hellos) == 2)
            await eventually_async(lambda: ranks(client) == [0])
            fresh = client.generate(PROMPT, PARAMS)
            assert [t async for o in fresh for t in o.new_token_ids] == PROMPT
            assert len(new.adds) == 1
            old.streaming = True
            assert [t async for o in stream for t in o.new_token_ids] == PROMPT
            await eventually_async(lambda: old.byes == 1, "the old pair is closed")


async def test_all_engines_may_go_and_come_back(tmp_path: Path) -> None:
    with ProtocolPeer() as peer:
        volume = ConfigMapVolume(tmp_path, addresses(peer))
        async with AsyncMPClient(volume.path) as client:
            volume.write(addresses())
            await eventually_async(lambda: ranks(client) == [])
            with pytest.raises(EngineNotReadyError, match="no engine has an address"):
                await anext(client.generate(PROMPT, PARAMS))
            patient = client.generate(PROMPT, PARAMS, retry=True, deadline=20)
            volume.write(addresses(peer))
            assert [t async for o in patient for t in o.new_token_ids] == PROMPT


def test_file_without_engines_yet(tmp_path: Path) -> None:
    volume = ConfigMapVolume(tmp_path, addresses())
    with pytest.raises(StartupTimeoutError, match="no engine has an address yet"):
        SyncMPClient(volume.path, ready_timeout=0.2)


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AddressError, match="No such file"):
        SyncMPClient(tmp_path / "nothing.json", ready_timeout=0.2)


async def test_sync_client_follows_a_file(tmp_path: Path) -> None:
    with ProtocolPeer(0) as one, ProtocolPeer(1) as two:
        volume = ConfigMapVolume(tmp_path, addresses(one))
        with SyncMPClient(volume.path) as client:
            volume.write(addresses(two))
            await eventually_async(lambda: len(two.hellos) == 2)
            await eventually_async(lambda: one.byes == 1)
            await eventually_async(client._driver.core.all_ready)
            outputs = list(client.generate(PROMPT, PARAMS, data_parallel_rank=1))
            assert len(outputs) == 3
