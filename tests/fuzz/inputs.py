"""A fuzzer's input: which decoder, and the frames, in one string of bytes.

`[decoder][number of aux frames][length of each: 2 bytes][aux frames][body]`. Every string of
bytes stands for some input: numbers wrap round and lengths end where the bytes do.
"""

from fuzz.targets import TARGETS

NAMES = list(TARGETS)
MOST_FRAMES = 4


def split(data: bytes) -> tuple[str, list[bytes]]:
    """Return the decoder's name and the frames, body first."""
    name = NAMES[data[0] % len(NAMES)] if data else NAMES[0]
    count = data[1] % (MOST_FRAMES + 1) if len(data) > 1 else 0
    lengths = [int.from_bytes(data[2 + 2 * i : 4 + 2 * i], "little") for i in range(count)]
    at = 2 + 2 * count
    aux = []
    for length in lengths:
        aux.append(data[at : at + length])
        at += length
    return name, [data[at:], *aux]


def join(name: str, frames: list[bytes]) -> bytes:
    """Return the input that `split` takes apart into these.

    Raises:
        ValueError: there are more than four aux frames.
    """
    body, *aux = frames
    if len(aux) > MOST_FRAMES:
        raise ValueError(f"{len(aux)} aux frames, allowed: {MOST_FRAMES}")
    lengths = b"".join(len(frame).to_bytes(2, "little") for frame in aux)
    return bytes((NAMES.index(name), len(aux))) + lengths + b"".join(aux) + body
