"""Small messages that would cost much if a decoder believed them."""

import msgspec

HUGE = [
    bytes.fromhex(header)
    for header in ("ddffffffff", "dfffffffff", "dbffffffff", "c6ffffffff", "c9ffffffff03",
                   "dd7fffffff", "dcffff", "deffff", "dd00004000")
]  # fmt: skip
"""Lengths of what does not follow: items, bytes, characters."""

BOMBS = {
    **{f"declares {huge.hex()}": huge for huge in HUGE},
    **{f"declares {huge.hex()}, 400 deep": huge * 400 + b"\xc0" for huge in HUGE},
    "arrays, deep": b"\x91" * 100_000 + b"\xc0",
    "maps, deep": b"\x81\xa1a" * 100_000 + b"\xc0",
    "long and deep": b"\xdd\x00\x04\x00\x00" + b"\x91" * 262_144,
    "each as long as the rest": b"\xdc\xff\xff" * 900 + b"\xc0" * 70_000,
    "sizes cut off": b"\x93\xa3<f4\xdd\x00\x01\x00\x00\xcf" + b"\xff" * 8,
    "endless shape": msgspec.msgpack.encode([["<f4", [2**63] * 50_000, 1]] * 3),
    "many dimensions": msgspec.msgpack.encode([["<f4", [0] * 50_000, 1]] * 3),
    "many keys": msgspec.msgpack.encode({f"{n}": n for n in range(9999)}),
}
"""Bodies, by what is bad about them."""
