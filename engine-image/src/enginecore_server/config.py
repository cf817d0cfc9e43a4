"""Reading the ServerConfig: from the environment in a pod, from a file elsewhere."""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from enginecore_wire.contract import CONFIG_ENV, ServerConfig
from enginecore_wire.layouts import LayoutError, layout_of
from enginecore_wire.public_keys import is_key

MAX_NUMBER = 2**31 - 1
"""Largest size or count: what engines' 32-bit counters hold."""

_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)


class ConfigError(ValueError):
    """The settings cannot be used; the text names the field and the remedy."""


def load_config(file: str | None, environment: Mapping[str, str]) -> ServerConfig:
    """Return the settings in `file`, or without one those in the environment.

    Raises:
        ConfigError: there are none, they are no JSON, or a field is wrong.
    """
    if file is not None:
        try:
            text = Path(file).read_bytes()
        except OSError as error:
            raise ConfigError(f"--config: cannot read {file}: {error.strerror}") from error
    elif CONFIG_ENV in environment:
        text = environment[CONFIG_ENV].encode(errors="surrogateescape")
    else:
        raise ConfigError(f"no settings: set {CONFIG_ENV} to a JSON document or give --config FILE")
    return parse_config(text)


def parse_config(text: bytes) -> ServerConfig:
    """Return the settings in a JSON document.

    Raises:
        ConfigError: it is no JSON, or a field is wrong.
    """
    try:
        config = msgspec.json.decode(text, type=ServerConfig)
    except msgspec.ValidationError as error:
        match = _PLACE.match(str(error))
        what, path = (match["what"], match["path"]) if match else (str(error), None)
        raise ConfigError(f"{path or 'settings'}: {what}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"settings are not JSON: {error}") from error
    check_config(config)
    return config


def check_config(config: ServerConfig) -> None:
    """Hold the settings to rules that concern several fields.

    Raises:
        ConfigError: a rule is broken.
    """
    if not config.name:
        raise ConfigError("name: must not be empty; it names this EngineCore to its clients")
    if not config.model.path:
        raise ConfigError("model.path: must not be empty; give a directory, file or model id")
    runtime = config.runtime
    if runtime.type == "custom" and not (runtime.command and runtime.command[0]):
        raise ConfigError("runtime.command: must not be empty for runtime.type custom")
    if runtime.type != "custom" and runtime.command:
        raise ConfigError(
            f"runtime.command: only for runtime.type custom; {runtime.type} has its own command, "
            "add to it with runtime.args"
        )
    if runtime.version:
        try:
            layout_of(runtime.version)
        except LayoutError as error:
            raise ConfigError(f"runtime.version: {error}") from error
    transport = config.transport
    ports: dict[int, str] = {}
    for field in ("input_port", "output_port", "http_port"):
        port = getattr(transport, field)
        if port and port in ports:
            raise ConfigError(f"transport.{field}: {port} is transport.{ports[port]} already")
        ports[port] = field
    if not transport.host:
        raise ConfigError("transport.host: must not be empty; * listens on every interface")
    limits = config.limits
    for field, value, least in (
        ("model.vocab_size", config.model.vocab_size, 1),
        ("limits.frame_bytes", limits.frame_bytes, 1024),
        ("limits.in_flight", limits.in_flight, 1),
        ("limits.in_flight_total", limits.in_flight_total, 1),
        ("limits.prompt_tokens", limits.prompt_tokens, 0),
    ):
        if value is not None and not least <= value <= MAX_NUMBER:
            raise ConfigError(f"{field}: got {value}, allowed: {least} to {MAX_NUMBER}")
    _check_keys(config)
    _check_texts(config)


def _check_keys(config: ServerConfig) -> None:
    """Hold the settings of CURVE together."""
    transport = config.transport
    secured = transport.security == "Curve"
    key, file = config.coordinator_key, config.coordinator_keys_file
    if key and file:
        raise ConfigError("coordinator_keys_file: given beside coordinator_key; give one of them")
    reports = secured and bool(config.coordinator_address)
    for field, value, wanted in (
        ("transport.secret_key_file", transport.secret_key_file, secured),
        ("transport.clients_directory", transport.clients_directory, secured),
        ("coordinator_key", key, reports and not file),
        ("coordinator_keys_file", file, False),
    ):
        if wanted and not value:
            raise ConfigError(f"{field}: must not be empty with transport.security Curve")
        if value and not secured:
            raise ConfigError(f"{field}: given, allowed: only with transport.security Curve")
    if key and not is_key(key):
        raise ConfigError("coordinator_key: expected a public key, 40 characters of Z85")


def _check_texts(config: ServerConfig) -> None:
    """Refuse what no program, file or address can be called."""
    texts = {
        "model.path": [config.model.path],
        "runtime.command": config.runtime.command,
        "runtime.args": config.runtime.args,
        "transport.host": [config.transport.host],
        "transport.secret_key_file": [config.transport.secret_key_file],
        "transport.clients_directory": [config.transport.clients_directory],
        "coordinator_keys_file": [config.coordinator_keys_file],
    }
    for field, values in texts.items():
        if any("\0" in value for value in values):
            raise ConfigError(f"{field}: holds a NUL character; remove it")
