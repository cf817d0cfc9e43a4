"""`python -m enginecore_torch MODEL …`: one EngineCore process."""

import logging
import sys
import time
from collections.abc import Sequence
from uuid import uuid4

from enginecore_torch.architecture import UnsupportedModelError
from enginecore_torch.build import BuiltEngine, SettingsError, build_engine
from enginecore_torch.config import parse_arguments
from enginecore_torch.core import CoreOptions
from enginecore_torch.links import HandshakeError
from enginecore_torch.proc import EngineCoreProc, install_stop_signals


def main(argv: Sequence[str] | None = None) -> int:
    """Run the engine; return its exit code.

    Args:
        argv: arguments without the program's name; None takes the process's own.
    """
    engine, process, level = parse_arguments(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )

    def build(options: CoreOptions) -> BuiltEngine:
        return build_engine(engine, options, time.monotonic)

    proc = EngineCoreProc(process, build, time.monotonic, uuid4().hex)
    install_stop_signals(proc)
    try:
        return proc.run()
    except (
        HandshakeError,
        FileNotFoundError,
        PermissionError,
        UnsupportedModelError,
        SettingsError,
    ) as error:
        logging.getLogger("enginecore_torch").error("%s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
