"""Which ranks a client manages, and how engines are started: tables."""

import sys

import pytest

from enginecore_client import EngineCommand, RequestRejectedError, engine_ranks
from enginecore_client._core.peers import MUTE_SECONDS, Peers, Strangers, rank_in
from enginecore_client._core.ranks import checked_ranks
from enginecore_client._launch.command import command_of
from enginecore_client._shell.engines import vocabulary_of
from enginecore_wire.codec import MsgpackEncoder
from enginecore_wire.outputs import ENGINE_CORE_DEAD, EngineCoreOutputs

MANAGED = [
    ("one engine", (1, {}), [0]),
    ("internal balance: all", (4, {}), [0, 1, 2, 3]),
    ("internal balance, not the first", (4, {"data_parallel_rank": 2}), [0, 1, 2, 3]),
    ("hybrid: start rank and local count", (8, {"data_parallel_rank": 4, "local_size": 2}), [4, 5]),
    ("hybrid, one local", (8, {"data_parallel_rank": 7, "local_size": 1}), [7]),
    ("external balance: own rank", (4, {"data_parallel_rank": 3, "external_lb": True}), [3]),
    ("offline: own rank", (4, {"data_parallel_rank": 1, "offline": True}), [1]),
    (
        "offline wins over local count",
        (4, {"data_parallel_rank": 1, "offline": True, "local_size": 3}),
        [1],
    ),
]


@pytest.mark.parametrize(
    ("arguments", "ranks"), [r[1:] for r in MANAGED], ids=[r[0] for r in MANAGED]
)
def test_managed(arguments, ranks: list[int]) -> None:
    size, options = arguments
    assert engine_ranks(size, **options) == ranks


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((0, {}), "data_parallel_size"),
        ((65537, {}), "data_parallel_size"),
        (("2", {}), "data_parallel_size"),
        ((2, {"data_parallel_rank": 2}), "data_parallel_rank"),
        ((2, {"data_parallel_rank": -1}), "data_parallel_rank"),
        ((4, {"data_parallel_rank": 2, "local_size": 3}), "local_size"),
        ((4, {"local_size": 0}), "local_size"),
    ],
)
def test_not_managed(arguments, field: str) -> None:
    size, options = arguments
    with pytest.raises(RequestRejectedError, match=field) as caught:
        engine_ranks(size, **options)
    assert caught.value.field == field


@pytest.mark.parametrize("ranks", [[], "01", [0, 0], [2], [-1], [0.0], 1, None])
def test_choice_refused(ranks) -> None:
    with pytest.raises(RequestRejectedError, match="engine_ranks"):
        checked_ranks(ranks, 2)


def test_choice_without_a_size() -> None:
    assert checked_ranks([7, 65535], None) == (7, 65535)


def test_torch_command() -> None:
    command = EngineCommand.torch("/m", "--threads", "1")
    assert command.words("127.0.0.1", 29550, 1, 2) == [
        sys.executable, "-m", "enginecore_torch", "/m", "--local",
        "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", "29550",
        "--data-parallel-rank", "1", "--data-parallel-size", "2", "--threads", "1",
    ]  # fmt: skip
    assert command.local


def test_vllm_command() -> None:
    command = EngineCommand.vllm("m", "--enforce-eager", program=["python", "-m", "vllm"])
    words = command.words("10.0.0.1", 1, 3, 4)
    assert words[:6] == ["python", "-m", "vllm", "serve", "m", "--headless"]
    assert words[-3:] == ["--data-parallel-start-rank", "3", "--enforce-eager"]
    assert not command.local


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ('{"vocab_size": 256}', 256),
        ('{"text_config": {"vocab_size": 7}, "other": []}', 7),
        ("{}", None),
        ("[]", None),
        ('{"vocab_size": "many"}', None),
        (None, None),
    ],
)
def test_vocabulary_is_read_from_the_models_directory(tmp_path, text, size) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert vocabulary_of(str(tmp_path)) == size
    assert vocabulary_of("org/model") is None


def test_words_alone_are_a_command() -> None:
    command = command_of(["run", "--at={address}:{port}", "{rank}/{size}", '{"a": {}}'])
    assert command.words("h", 5, 1, 2) == ["run", "--at=h:5", "1/2", '{"a": {}}']


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (None, "without client_addresses the client starts engines itself"),
        ([], "allowed: an EngineCommand, or the words"),
        ("run {port}", "the words of a command"),
        (["run", 5], "the words of a command"),
        (["run", "{rank}"], r"no word has \{port\}"),
        (EngineCommand(("run",)), r"no word has \{port\}"),
    ],
)
def test_no_command(command, text: str) -> None:
    with pytest.raises(RequestRejectedError, match=text):
        command_of(command)


@pytest.mark.parametrize("rank", [0, 1, 127, 128, 255, 256, 65535])
def test_rank_is_read_at_the_front_of_outputs(rank: int) -> None:
    (body,) = MsgpackEncoder().encode(EngineCoreOutputs(rank))
    assert rank_in(body) == rank
    assert rank_in(memoryview(body)) == rank
    assert rank_in(b"\xdc\x00\x12" + body[1:]) == rank


@pytest.mark.parametrize(
    "body",
    [b"", b"\x99", b"\x90", b"\xdc\x00", b"\x99\xcc", b"\x99\xcd\x01", b"\x99\xff", b"\x99\xce" +
     4 * b"\x00", b"\x81\x00", ENGINE_CORE_DEAD, b"\xdc\x00\x12"],
)  # fmt: skip
def test_no_rank_in_what_is_no_outputs(body: bytes) -> None:
    assert rank_in(body) is None


def test_connections_are_known_by_what_they_say() -> None:
    peers = Peers()
    peers.accepted(20, 1.0)
    peers.accepted(21, 1.0)
    assert peers.mute(1.0 + MUTE_SECONDS) == [20, 21]
    peers.know(20, 3)
    assert peers.rank(20) == 3
    assert peers.unknown == {21: 1.0}
    assert peers.disconnected(20) == 3
    assert peers.disconnected(20) is None
    assert peers.disconnected(21) is None
    assert peers.unknown == {}


def test_message_may_be_read_before_its_connection_is_announced() -> None:
    peers = Peers()
    peers.know(20, 3)
    peers.accepted(20, 1.0)
    assert peers.unknown == {}
    assert peers.disconnected(20) == 3


def test_end_of_an_older_process_means_nothing_for_the_next() -> None:
    peers = Peers()
    peers.know(20, 3)
    peers.know(30, 4)
    peers.succeed(21, 3)
    assert peers.disconnected(20) is None
    assert peers.ranks() == {3, 4}
    assert peers.disconnected(21) == 3


def test_strangers_are_reported_once(caplog) -> None:
    strangers = Strangers("tcp://*:1")
    for _ in range(3):
        strangers.refuse(b"\x05\x00", [0, 1])
        strangers.count(-1, [0, 1])
    (record,) = caplog.records
    assert record.getMessage() == (
        "an engine named 0500 dialled in at tcp://*:1 and is ignored; this client's ranks are "
        "[0, 1]"
    )
    for mute in (1, 1, 2, 2, 0, 1):
        strangers.count(mute, [0])
    assert [record.getMessage()[:13] for record in caplog.records[1:]] == [
        "1 connection(", "2 connection(", "1 connection(",
    ]  # fmt: skip
