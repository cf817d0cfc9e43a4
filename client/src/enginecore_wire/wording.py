"""Sentences: numbers in them, and what is left of long ones."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return the number with its noun: `1 engine`, `2 engines`; `plural` where no s makes it."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or f'{noun}s'}"


def is_or_are(number: int) -> str:
    """Return the verb of so many things: `is`, `are`."""
    return "is" if number == 1 else "are"


def shortened(text: str, length: int, head: int) -> str:
    """Return a text, without its middle if it is longer than `length` characters.

    Its first `head` characters stay, and as many of its last as there is room for.
    """
    return text if len(text) <= length else f"{text[:head]} … {text[head + 3 - length :]}"
