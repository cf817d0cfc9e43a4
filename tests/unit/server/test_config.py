"""Settings: what is taken, and what the errors say."""

import json
from pathlib import Path
from typing import Any

import pytest

from enginecore_server.config import ConfigError, load_config, parse_config
from enginecore_wire.contract import CONFIG_ENV

CURVE = {"security": "Curve", "secret_key_file": "x", "clients_directory": "y"}
GOOD: dict[str, Any] = {"name": "smollm-0", "model": {"path": "/models/smollm"}}


def encoded(**changes: Any) -> bytes:
    return json.dumps(GOOD | changes).encode()


def test_defaults_are_those_of_the_contract() -> None:
    config = parse_config(encoded())
    assert config.runtime.type == "torch"
    assert (config.transport.input_port, config.transport.output_port) == (5557, 5558)
    assert config.liveness.step_deadline_seconds == 60.0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": 3}, "name"),
        ({"model": {"path": ""}}, "model.path"),
        ({"model": {"path": "x", "vocab_size": 0}}, "model.vocab_size"),
        ({"rank": -1}, "rank"),
        ({"rank": 65536}, "rank"),
        ({"runtime": {"type": "sglang"}}, "runtime.type"),
        ({"transport": {"security": "Tls"}}, "transport.security"),
        ({"transport": {"security": "Curve"}}, "transport.secret_key_file"),
        (
            {"transport": {"security": "Curve", "secret_key_file": "x"}},
            "transport.clients_directory",
        ),
        ({"transport": {"clients_directory": "x"}}, "transport.clients_directory"),
        ({"transport": CURVE, "coordinator_address": "tcp://h:1"}, "coordinator_key"),
        ({"transport": CURVE, "coordinator_key": "x"}, "coordinator_key"),
        ({"coordinator_key": "x"}, "coordinator_key"),
        ({"coordinator_keys_file": "x"}, "coordinator_keys_file"),
        (
            {"transport": CURVE, "coordinator_key": "x", "coordinator_keys_file": "x"},
            "coordinator_keys_file",
        ),
        ({"runtime": {"type": "custom"}}, "runtime.command"),
        ({"runtime": {"type": "vllm", "version": "0.9.0"}}, "runtime.version"),
        ({"runtime": {"type": "vllm", "version": "latest"}}, "runtime.version"),
        ({"runtime": {"type": "vllm", "command": ["x"]}}, "runtime.command"),
        ({"transport": {"input_port": 70000}}, "transport.input_port"),
        ({"transport": {"input_port": 5558}}, "transport.output_port"),
        ({"transport": {"http_port": 5557}}, "transport.http_port"),
        ({"transport": {"max_clients": 0}}, "transport.max_clients"),
        ({"liveness": {"grace_seconds": 0}}, "liveness.grace_seconds"),
        ({"limits": {"frame_bytes": 10}}, "limits.frame_bytes"),
        ({"limits": {"in_flight": 0}}, "limits.in_flight"),
        ({"limits": {"in_flight": 2**64}}, "limits.in_flight"),
        ({"limits": {"frame_bytes": 2**62}}, "limits.frame_bytes"),
        ({"limits": {"prompt_tokens": -5}}, "limits.prompt_tokens"),
        ({"model": {"path": "x", "vocab_size": 2**63}}, "model.vocab_size"),
        ({"model": {"path": "x\0"}}, "model.path"),
        ({"runtime": {"args": ["--a", "\0"]}}, "runtime.args"),
        ({"runtime": {"type": "custom", "command": [""]}}, "runtime.command"),
        ({"transport": {"host": ""}}, "transport.host"),
        ({"transport": {"max_clients": 1001}}, "transport.max_clients"),
        ({"epoch": 2**64}, "epoch"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field.replace(".", r"\.")):
        parse_config(encoded(**changes))


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(ConfigError, match="not JSON"):
        parse_config(b"{")


def test_a_variable_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="not JSON"):
        load_config(None, {CONFIG_ENV: "\udcff"})


def test_two_free_ports_are_no_conflict() -> None:
    ports = {"input_port": 0, "output_port": 0, "http_port": 0}
    assert parse_config(encoded(transport=ports)).transport.http_port == 0


def test_the_file_wins_over_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(encoded(name="from-file"))
    environment = {CONFIG_ENV: encoded(name="from-environment").decode()}
    assert load_config(str(file), environment).name == "from-file"
    assert load_config(None, environment).name == "from-environment"


@pytest.mark.parametrize(
    ("file", "text"), [(None, CONFIG_ENV), ("/nowhere/config.json", "/nowhere/config.json")]
)
def test_missing_settings_say_where_they_were_looked_for(file: str | None, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load_config(file, {})
