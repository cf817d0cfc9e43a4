"""Let atheris look for bytes that a decoder neither reads nor refuses.

`python -m fuzz SECONDS [options of libFuzzer]`, as `make fuzz` runs it. It starts from valid
messages and is told which lines of enginecore_wire each input reached. A finding ends it with
another status than 0 and prints the input, also as base64; `python -m fuzz FILE` runs one again.
"""

import resource
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["enginecore_wire"]):
    from fuzz.bombs import BOMBS
    from fuzz.inputs import join, split
    from fuzz.seeds import seeds
    from fuzz.targets import TARGETS

import msgspec

SLOW_SECONDS = 10
"""An input that takes longer is a finding."""

MEMORY_MIB = 512
"""Memory an input may take: more is refused by the system, and the MemoryError is a finding."""

LONGEST = 1 << 14
"""Bytes of an input."""

WORDS = [
    bytes.fromhex(text)
    for text in ("c0", "c2", "c3", "c403616161", "c7000003", "c7010301", "d40100", "d40200",
                 "d6ffffffffff", "c9ffffffff03", "cb7ff0000000000000", "cb7ff8000000000001",
                 "cfffffffffffffffff", "d38000000000000000", "d9ff", "dbffffffff", "dc0016",
                 "dcffff", "ddffffffff", "deffff", "dfffffffff", "90", "80", "93a33c6634", "91" * 9)
]  # fmt: skip
"""Items of msgpack to put in: each kind of header, and lengths of what does not follow."""


def try_input(data: bytes) -> None:
    """Feed one input to the decoder it names."""
    name, frames = split(data)
    try:
        TARGETS[name](frames)
    except msgspec.DecodeError:
        return


def _escaped(word: bytes) -> str:
    """Return `word` as libFuzzer's dictionaries have it."""
    return "".join(f"\\x{byte:02x}" for byte in word)


def main(arguments: list[str]) -> None:
    """Fuzz for the seconds given, or run the files given once."""
    if arguments and not arguments[0].isdigit():
        atheris.Setup([sys.argv[0], *arguments], try_input)
        atheris.Fuzz()
    seconds, *options = arguments or ["60"]
    with tempfile.TemporaryDirectory(prefix="enginecore-fuzz-") as corpus:
        inputs = Path(corpus) / "inputs"
        inputs.mkdir()
        known = [join(name, frames) for name, frames in seeds()]
        known += [join(name, [bomb[:LONGEST]]) for name in TARGETS for bomb in BOMBS.values()]
        for number, data in enumerate(known):
            (inputs / f"{number:04}").write_bytes(data)
        words = Path(corpus) / "words"
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in WORDS))
        atheris.Setup(
            [
                sys.argv[0],
                f"-max_total_time={seconds}",
                f"-timeout={SLOW_SECONDS}",
                "-rss_limit_mb=0",  # _bound_memory does it
                f"-max_len={LONGEST}",
                f"-artifact_prefix={tempfile.gettempdir()}/enginecore-fuzz-",
                f"-dict={words}",
                "-print_final_stats=1",
                *options,
                str(inputs),
            ],
            try_input,
        )
        for data in known:
            try_input(data)  # imports whatever is imported late
        _bound_memory()
        atheris.Fuzz()


def _bound_memory() -> None:
    """Let this process have MEMORY_MIB more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (MEMORY_MIB << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main(sys.argv[1:])
