"""Let atheris look for bytes that a decoder neither reads nor refuses.

`python -m fuzz SECONDS [options of libFuzzer]`, as `make fuzz` runs it. It starts from valid
messages and is told which lines of enginecore_wire each input reached. A finding ends it with
another status than 0 and prints the input, also as base64; `python -m fuzz FILE` runs one again.
"""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["enginecore_wire"]):
    from fuzz.inputs import join, split
    from fuzz.seeds import seeds
    from fuzz.targets import TARGETS

import msgspec

SLOW_SECONDS = 10
"""An input that takes longer is a finding."""

MEMORY_MIB = 3072
"""A process that holds more is a finding; torch alone takes a good part of the first GiB."""

ALLOCATION_MIB = 256
"""One allocation of more is a finding."""

LONGEST = 1 << 14
"""Bytes of an input."""


def try_input(data: bytes) -> None:
    """Feed one input to the decoder it names."""
    name, frames = split(data)
    try:
        TARGETS[name](frames)
    except msgspec.DecodeError:
        return


def main(arguments: list[str]) -> None:
    """Fuzz for the seconds given, or run the files given once."""
    if arguments and not arguments[0].isdigit():
        atheris.Setup([sys.argv[0], *arguments], try_input)
        atheris.Fuzz()
    seconds, *options = arguments or ["60"]
    with tempfile.TemporaryDirectory(prefix="enginecore-fuzz-") as corpus:
        for number, (name, frames) in enumerate(seeds()):
            (Path(corpus) / f"{number:04}").write_bytes(join(name, frames))
        atheris.Setup(
            [
                sys.argv[0],
                f"-max_total_time={seconds}",
                f"-timeout={SLOW_SECONDS}",
                f"-rss_limit_mb={MEMORY_MIB}",
                f"-malloc_limit_mb={ALLOCATION_MIB}",
                f"-max_len={LONGEST}",
                f"-artifact_prefix={tempfile.gettempdir()}/enginecore-fuzz-",
                "-print_final_stats=1",
                *options,
                corpus,
            ],
            try_input,
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
