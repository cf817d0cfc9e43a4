"""What a public key looks like: 32 bytes, written as 40 characters of Z85 (ZMQ's RFC 32)."""

from typing import Final

KEY_CHARACTERS: Final = 40
_ALPHABET: Final = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
KEY_PATTERN: Final = rf"^[0-9a-zA-Z.:+=^!/*?&<>()\[\]{{}}@%$#-]{{{KEY_CHARACTERS}}}$"
"""What an API's schema can say of a key; is_key says all."""

_DIGITS: Final = {character: digit for digit, character in enumerate(_ALPHABET)}
_GROUP: Final = 5
_GROUP_LIMIT: Final = 2**32


def is_key(text: str) -> bool:
    """Say whether a text is a key. Secret keys look the same."""
    if len(text) != KEY_CHARACTERS or not _DIGITS.keys() >= set(text):
        return False
    groups = (text[i : i + _GROUP] for i in range(0, KEY_CHARACTERS, _GROUP))
    return all(_value(group) < _GROUP_LIMIT for group in groups)


def _value(group: str) -> int:
    number = 0
    for character in group:
        number = number * len(_ALPHABET) + _DIGITS[character]
    return number
