"""Numbers in sentences."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return the number with its noun: `1 engine`, `2 engines`; `plural` where no s makes it."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or f'{noun}s'}"


def is_or_are(number: int) -> str:
    """Return the verb of so many things: `is`, `are`."""
    return "is" if number == 1 else "are"
