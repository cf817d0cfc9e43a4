"""Read the status pages of engine servers."""

import asyncio
from typing import Final

import aiohttp
import msgspec

from enginecore_operator.metrics import OperatorMetrics
from enginecore_wire.contract import ServerStatus

READ_SECONDS: Final = 2.0
PAGE_BYTES: Final = 1 << 20
AT_ONCE: Final = 32


class StatusReadError(Exception):
    """The page could not be read; the message says why, in words that stay the same."""


class StatusReader:
    """Reads status pages over one HTTP session, a bounded number at a time."""

    def __init__(self, session: aiohttp.ClientSession, metrics: OperatorMetrics) -> None:
        self._session = session
        self._metrics = metrics
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def read(self, url: str) -> ServerStatus:
        """Read one page. Raises StatusReadError."""
        try:
            async with self._slots, asyncio.timeout(READ_SECONDS):
                status = await self._fetch(url)
        except StatusReadError:
            self._metrics.status_reads.labels("error").inc()
            raise
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._metrics.status_reads.labels("error").inc()
            raise StatusReadError(f"{url}: {type(error).__name__}") from error
        self._metrics.status_reads.labels("ok").inc()
        return status

    async def _fetch(self, url: str) -> ServerStatus:
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                raise StatusReadError(f"{url}: HTTP status {response.status}")
            body = await response.content.read(PAGE_BYTES)
        try:
            return msgspec.json.decode(body, type=ServerStatus)
        except msgspec.MsgspecError as error:
            raise StatusReadError(f"{url}: not a status page: {error}") from error
