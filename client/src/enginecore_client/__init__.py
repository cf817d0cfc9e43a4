"""The client: consumes the addresses of EngineCores, streams tokens, exports metrics.

Start at AsyncMPClient (asyncio) or SyncMPClient (threads); docs/client.md is the guide.
"""

from enginecore_client._addresses import ClientAddresses
from enginecore_client._aio import AsyncMPClient

__all__ = ["AsyncMPClient", "ClientAddresses"]
