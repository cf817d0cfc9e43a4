"""The fake engine with a journal, as a program: `engine.py --journal FILE …`, other options are
the fake engine's."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from chaos.journal import Added, Computed, Dropped, Journal
from enginecore_client.testing.fake_core import FakeEngineCore, Running
from enginecore_client.testing.fake_process import add_arguments, log_to_output, run, settings_of
from enginecore_wire.outputs import EngineCoreOutput, FinishReason
from enginecore_wire.requests import EngineCoreRequest


class JournaledCore(FakeEngineCore):
    """Writes down what it gets, finishes and drops."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(settings_of(options))
        self._file = Journal(options.journal)

    def add_request(self, request: EngineCoreRequest) -> None:
        self._file.write(Added(request.request_id))
        super().add_request(request)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if request_id in self.running or request_id in self.waiting:
                self._file.write(Dropped(request_id))
        super().abort_requests(request_ids)

    def output_of(
        self, entry: Running, token: int, reason: FinishReason | None
    ) -> EngineCoreOutput:
        if reason is not None:
            self._file.write(Computed(entry.request.request_id, entry.position))
        return super().output_of(entry, token, reason)


def main() -> int:
    """Run the engine; return its exit status."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.add_argument("--journal", type=Path, required=True)
    options = parser.parse_args()
    log_to_output("engine")
    return run(options, JournaledCore(options))


if __name__ == "__main__":
    sys.exit(main())
