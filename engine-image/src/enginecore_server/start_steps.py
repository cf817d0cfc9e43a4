"""What an engine does while it loads, by the words of its log."""

from typing import Final, NamedTuple


class Step(NamedTuple):
    """One step of a start.

    Attributes:
        reason: one CamelCase word for programs.
        message: a sentence for people.
        signs: words in the log that say that it has begun; those of vLLM.
    """

    reason: str
    message: str
    signs: tuple[bytes, ...]


STEPS: Final = (
    Step("StartingWorkers", "the engine starts its workers", (b"Initializing a V1 LLM engine",)),
    Step("LoadingWeights", "the engine loads the model's weights", (b"Starting to load model",)),
    Step(
        "ProfilingMemory",
        "the weights are loaded, the engine measures how much memory a step takes",
        (b"Model loading took", b"Loading weights took"),
    ),
    Step(
        "Compiling",
        "the engine compiles the model",
        (b"Dynamo bytecode transform", b"Compiling a graph", b"Cache the graph"),
    ),
    Step(
        "AllocatingCache",
        "the engine allocates its KV cache",
        (b"KV cache size:", b"Available KV cache memory"),
    ),
    Step(
        "WarmingUp",
        "the engine warms up and captures graphs",
        (b"Capturing CUDA graph", b"Warming up model", b"Compile and warming up model"),
    ),
)
"""In the order in which they come; a step that another process of the engine reports later than a
following one is passed over."""

_OVERLAP: Final = max(len(sign) for step in STEPS for sign in step.signs) - 1


class StartSteps:
    """Follows an engine through its start. Takes the log as it comes, cut anywhere."""

    def __init__(self) -> None:
        self._next = 0
        self._rest = b""

    def feed(self, chunk: bytes) -> Step | None:
        """Return the step that has begun by these words of the log; None if none has."""
        text = self._rest + chunk
        self._rest = text[-_OVERLAP:]
        begun = [
            number
            for number, step in enumerate(STEPS[self._next :], self._next)
            if any(sign in text for sign in step.signs)
        ]
        if not begun:
            return None
        self._next = begun[-1] + 1
        return STEPS[begun[-1]]
