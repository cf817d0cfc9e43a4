"""How engines are started: what a caller says about it, and the command line it becomes."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from enginecore_client._core.spans import FAR
from enginecore_client.errors import RequestRejectedError
from enginecore_wire.codec import UNSENDABLE

STOP_SECONDS: Final = 10.0
"""How long engines have between SIGTERM and SIGKILL."""

LAST_PORT: Final = 65535

PLACES: Final = ("address", "port", "rank", "size")
"""What stands in braces in a command: where the handshake is, and who the engine is."""


class EngineCommand(msgspec.Struct, frozen=True):
    """The command that starts the engine of one rank.

    Attributes:
        command: its words; `{address}` and `{port}` (of the handshake), `{rank}` and `{size}` are
            replaced.
        env: variables beside those of this process.
        local: whether the engine says in its HELLO that it was launched here; one that says
            otherwise is refused.
        vocab_size: of the model, where it is known; see NativeOptions.
        model: what the engine loads; its config.json is read for the vocabulary if it is here.
    """

    command: tuple[str, ...]
    env: dict[str, str] = {}
    local: bool = False
    vocab_size: int | None = None
    model: str = ""

    @classmethod
    def torch(cls, model: str, *args: str, env: Mapping[str, str] | None = None) -> "EngineCommand":
        """Return the command of the built-in torch engine.

        Args:
            model: a directory with config.json and safetensors, or a .gguf file.
            args: more options of `python -m enginecore_torch`.
            env: variables beside those of this process.
        """
        words = (
            sys.executable, "-m", "enginecore_torch", str(model), "--local",
            "--data-parallel-address", "{address}", "--data-parallel-rpc-port", "{port}",
            "--data-parallel-rank", "{rank}", "--data-parallel-size", "{size}",
        )  # fmt: skip
        return cls((*words, *args), dict(env or {}), local=True, model=str(model))

    @classmethod
    def vllm(
        cls,
        model: str,
        *args: str,
        program: Sequence[str] = ("vllm",),
        env: Mapping[str, str] | None = None,
    ) -> "EngineCommand":
        """Return the command of a stock vLLM engine without a front end.

        Args:
            model: a path or a name, as `vllm serve` takes it.
            args: more options of `vllm serve`.
            program: how vLLM is called.
            env: variables beside those of this process.
        """
        words = (
            *program, "serve", str(model), "--headless",
            "--data-parallel-address", "{address}", "--data-parallel-rpc-port", "{port}",
            "--data-parallel-size", "{size}", "--data-parallel-size-local", "1",
            "--data-parallel-start-rank", "{rank}",
        )  # fmt: skip
        return cls((*words, *args), dict(env or {}), model=str(model))

    def words(self, address: str, port: int, rank: int, size: int) -> list[str]:
        """Return the command line of a rank."""
        places = {"address": address, "port": str(port), "rank": str(rank), "size": str(size)}
        return [_filled(word, places) for word in self.command]


class LaunchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How engines are launched, beside their command.

    Attributes:
        local_ranks: the ranks whose processes are started here; None for all. The others are
            started elsewhere, without a front end, and dial `host`.
        host: the IP of this machine that engines dial. With engines elsewhere, requests and
            outputs travel over it too.
        handshake_port: 0 for a free one.
        coordinator: whether a coordinator is started; None for: with all of more than one engine.
        parallel_config: what INIT tells engines to set, for those that run in lockstep.
        stop_seconds: from SIGTERM to SIGKILL.
    """

    local_ranks: tuple[int, ...] | None = None
    host: str = "127.0.0.1"
    handshake_port: int = 0
    coordinator: bool | None = None
    parallel_config: dict[str, Any] = {}
    stop_seconds: float = STOP_SECONDS


def command_of(command: "EngineCommand | Sequence[str] | None") -> EngineCommand:
    """Return the command that a caller gave, words alone included.

    Raises:
        RequestRejectedError: there is none, or a word is none.
    """
    given: Any = command.command if isinstance(command, EngineCommand) else command
    plain = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    if not plain or not given or not all(_is_text(word) for word in given):
        raise RequestRejectedError(
            f"engine_command: got {given!r}, allowed: an EngineCommand, or the words of a command "
            "with {address}, {port} and {rank}, strings without NUL; without client_addresses the "
            "client starts engines itself",
            field="engine_command",
        )
    if not any("{port}" in word for word in given):
        raise RequestRejectedError(
            "engine_command: no word has {port}, so the engine would not know whom to dial",
            field="engine_command",
        )
    if not isinstance(command, EngineCommand):
        return EngineCommand(tuple(given))
    _check_command(command)
    return command


def _check_command(command: EngineCommand) -> None:
    env, size = command.env, command.vocab_size
    if not isinstance(env, Mapping):
        raise _wrong("engine_command.env", env, "a map of names to values")
    for name, value in env.items():
        if not _is_text(name) or not name or "=" in name or not _is_text(value):
            # The value is not shown: it may be a secret.
            raise RequestRejectedError(
                f"engine_command.env: {name!r} or its value ({type(value).__name__}) cannot be a "
                "variable; allowed: strings without NUL, and no = in the name",
                field="engine_command.env",
            )
    if size is not None and (type(size) is not int or size < 1):
        raise _wrong("engine_command.vocab_size", size, "an integer, 1 or more, or None")
    if not _is_text(command.model):
        raise _wrong("engine_command.model", command.model, "a path or a name, a string")
    if type(command.local) is not bool:
        raise _wrong("engine_command.local", command.local, "True or False")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def check_launch(launch: LaunchOptions) -> None:
    """Refuse options that cannot be.

    Raises:
        RequestRejectedError: `field` names the culprit.
    """
    if not isinstance(launch, LaunchOptions):
        raise _wrong("launch", launch, "a LaunchOptions")
    port, seconds = launch.handshake_port, launch.stop_seconds
    if not _is_ip(launch.host):
        raise _wrong("launch.host", launch.host, "an IP of this machine that engines dial")
    if type(port) is not int or not 0 <= port <= LAST_PORT:
        raise _wrong("launch.handshake_port", port, f"0 to {LAST_PORT}, 0 for a free one")
    if not isinstance(seconds, int | float) or not 0 <= seconds < FAR:
        raise _wrong("launch.stop_seconds", seconds, "seconds, 0 or more")
    if launch.coordinator is not None and type(launch.coordinator) is not bool:
        raise _wrong("launch.coordinator", launch.coordinator, "True, False or None")
    config = launch.parallel_config
    if not isinstance(config, Mapping) or not _is_plain(config):
        raise _wrong("launch.parallel_config", config, "a map of settings that msgpack can hold")


def _is_plain(config: Mapping[str, Any]) -> bool:
    try:
        msgspec.msgpack.encode(dict(config))
    except UNSENDABLE:
        return False
    return True


def _wrong(field: str, value: Any, allowed: str) -> RequestRejectedError:
    return RequestRejectedError(f"{field}: got {value!r}, allowed: {allowed}", field=field)


def _filled(word: str, places: Mapping[str, str]) -> str:
    for name, value in places.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _is_ip(host: Any) -> bool:
    import ipaddress  # noqa: PLC0415 - clients that start no engines save its cost

    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return isinstance(host, str)
