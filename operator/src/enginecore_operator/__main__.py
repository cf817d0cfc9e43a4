"""`python -m enginecore_operator`: runs until SIGTERM or SIGINT, then exits 0.

Reads ENGINECORE_OPERATOR_* (settings) and KUBECONFIG; without the latter, the pod's service
account, which also tells the namespace where none is set.
"""

import asyncio
import logging
import os
import socket
import sys
import uuid
from pathlib import Path
from typing import Final

from enginecore_operator.kube.client import load_api_client
from enginecore_operator.kube.errors import KubeError
from enginecore_operator.service import OperatorService
from enginecore_operator.settings import Settings, SettingsError, read_settings

NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

logger = logging.getLogger("enginecore_operator")


async def serve(settings: Settings, kubeconfig: str) -> None:
    """Run the operator until it is told to end.

    Raises:
        KubeError: there is no way to the API server.
        OSError: the HTTP port is taken.
    """
    api = await load_api_client(kubeconfig, connections=4 * settings.concurrency)
    await OperatorService(settings, api).run()


def main() -> int:
    """Run the command line; returns the exit status."""
    identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    namespace = NAMESPACE_FILE.read_text().strip() if NAMESPACE_FILE.is_file() else ""
    try:
        settings = read_settings(os.environ, identity=identity, namespace=namespace)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    logging.basicConfig(
        level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # kopf tells of every event at INFO.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        asyncio.run(serve(settings, os.environ.get("KUBECONFIG", "")))
    except (KubeError, OSError) as error:
        logger.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
