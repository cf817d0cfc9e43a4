"""The states of a connection and what moves it from one to another.

    Connecting ──both sockets up──▶ Hello ──PHASE──▶ Loading ──READY──▶ Ready ──▶ Draining
        ▲                             │                 │                │           │
        └──────────a socket went down─┴─────────────────┴────────────────┴───────────┘

and from every state to Dead (ENGINE_CORE_DEAD) or Lost (silence, a break that lasts, a
session given up by the pod, another process behind the address). Both are final: whoever
owns the connection closes the pair and opens a new one.

An engine that dials in knows no sessions: Connecting ──READY payload──▶ Ready, and from both
to Dead or Lost.
"""

from enum import Enum, StrEnum
from typing import Final


class Channel(Enum):
    """The two sockets of a pair."""

    INPUT = "input"
    OUTPUT = "output"


class State(StrEnum):
    """Where a connection is in its life."""

    CONNECTING = "Connecting"
    HELLO = "Hello"
    LOADING = "Loading"
    READY = "Ready"
    DRAINING = "Draining"
    LOST = "Lost"
    DEAD = "Dead"


class Move(Enum):
    """What changes the state."""

    UP = "both sockets are connected"
    DOWN = "a socket went down"
    PHASE = "the pod answered, its engine is not ready"
    READY = "the pod answered, its engine is ready"
    DRAIN = "the pod takes nothing new"
    FORGOTTEN = "the pod knows no session"
    GONE = "the session cannot go on"
    DIED = "the engine process died"


_ENDS: Final = {Move.GONE: State.LOST, Move.DIED: State.DEAD}
_SPEAKING: Final = {Move.DOWN: State.CONNECTING, Move.UP: State.HELLO, **_ENDS}
_ANSWERS: Final = {Move.PHASE: State.LOADING, Move.READY: State.READY, Move.DRAIN: State.DRAINING}

TRANSITIONS: Final[dict[State, dict[Move, State]]] = {
    State.CONNECTING: {Move.UP: State.HELLO, **_ENDS},
    State.HELLO: {**_SPEAKING, **_ANSWERS},
    State.LOADING: {**_SPEAKING, **_ANSWERS, Move.FORGOTTEN: State.HELLO},
    State.READY: {
        **_SPEAKING, Move.READY: State.READY, Move.DRAIN: State.DRAINING,
        Move.FORGOTTEN: State.HELLO,
    },
    State.DRAINING: {**_SPEAKING, Move.READY: State.READY, Move.FORGOTTEN: State.HELLO},
    State.LOST: {},
    State.DEAD: {},
}  # fmt: skip
"""The state after each move; a move that is not listed changes nothing."""

NATIVE_TRANSITIONS: Final[dict[State, dict[Move, State]]] = {
    State.CONNECTING: {Move.READY: State.READY, **_ENDS},
    State.READY: _ENDS,
    State.LOST: {},
    State.DEAD: {},
}
"""The same for an engine that dials in."""

WORKING: Final = frozenset({State.READY, State.DRAINING})
FINAL: Final = frozenset({State.LOST, State.DEAD})
