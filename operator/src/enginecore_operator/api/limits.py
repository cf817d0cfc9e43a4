"""What an engine takes of its clients."""

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from enginecore_operator.api.schema import Rule, Spec
from enginecore_wire.control import Limits as Standard

STANDARD: Final = Standard()
MOST_BYTES: Final = 2**31 - 1
MOST_REQUESTS: Final = 1 << 20


class Limits(Spec, frozen=True):
    """Limits that READY tells to every client; what is beyond them is rejected."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.inFlightTotal >= self.inFlight",
            "must not be smaller than inFlight",
            ".inFlightTotal",
            lambda limits: limits.in_flight_total >= limits.in_flight,
        ),
    )
    frame_bytes: Annotated[
        int, Meta(ge=1 << 16, le=MOST_BYTES, description="Bytes of a message's largest frame.")
    ] = STANDARD.frame_bytes
    in_flight: Annotated[
        int, Meta(ge=1, le=MOST_REQUESTS, description="Unfinished requests of one client.")
    ] = STANDARD.in_flight
    in_flight_total: Annotated[
        int, Meta(ge=1, le=MOST_REQUESTS, description="Unfinished requests of all clients.")
    ] = STANDARD.in_flight_total
    prompt_tokens: Annotated[
        int,
        Meta(ge=0, le=MOST_BYTES, description="Tokens of a prompt; 0: as many as the model takes."),
    ] = STANDARD.prompt_tokens
