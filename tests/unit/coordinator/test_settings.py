"""Command line and variables of the coordinator."""

import pytest

from enginecore_coordinator.__main__ import parse_settings

DEFAULTS = {
    "report_address": "tcp://*:5559",
    "publish_address": "tcp://*:5560",
    "http_host": "",
    "http_port": 8080,
    "max_ranks": 1024,
    "secret_key_file": "",
    "clients_directory": "",
}


@pytest.mark.parametrize(
    ("argv", "env", "changed"),
    [
        ([], {}, {}),
        (["--max-ranks", "4"], {}, {"max_ranks": 4}),
        ([], {"ENGINECORE_COORDINATOR_MAX_RANKS": "4"}, {"max_ranks": 4}),
        (["--max-ranks", "4"], {"ENGINECORE_COORDINATOR_MAX_RANKS": "9"}, {"max_ranks": 4}),
        (["--http-port", "0"], {}, {"http_port": 0}),
        (
            ["--report-address", "tcp://127.0.0.1:1", "--publish-address", "tcp://127.0.0.1:2"],
            {},
            {"report_address": "tcp://127.0.0.1:1", "publish_address": "tcp://127.0.0.1:2"},
        ),
    ],
)
def test_option_wins_over_variable_and_variable_over_default(
    argv: list[str], env: dict[str, str], changed: dict[str, object]
) -> None:
    assert vars(parse_settings(argv, env)) == DEFAULTS | changed


@pytest.mark.parametrize(
    ("argv", "env", "named"),
    [
        (["--http-port", "65536"], {}, "--http-port 65536"),
        (["--max-ranks", "0"], {}, "--max-ranks 0"),
        (["--max-ranks", "65537"], {}, "--max-ranks 65537"),
        ([], {"ENGINECORE_COORDINATOR_HTTP_PORT": "http"}, "--http-port"),
        (["--ranks", "4"], {}, "--ranks"),
        (["--report-address", "tcp://*:70000"], {}, "--report-address tcp://*:70000"),
        (["--report-address", ""], {}, "--report-address"),
        (["--publish-address", "ipc:///x"], {}, "--publish-address"),
        (["--secret-key-file", "x"], {}, "--secret-key-file and --clients-directory"),
        (["--clients-directory", "x"], {}, "--secret-key-file and --clients-directory"),
        (["--publish-address", "tcp://h:\u00b2"], {}, "--publish-address"),
    ],
)
def test_bad_setting_is_named(
    argv: list[str], env: dict[str, str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_settings(argv, env)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err
