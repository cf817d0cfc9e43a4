"""Whom an engine's messages are for: most often for those the message before was for."""

from enginecore_client._core.books import RequestRecord
from enginecore_wire.outputs import EngineCoreOutput


class Roll:
    """The requests of an engine's last messages, in their order.

    An engine that decodes sends one message after another for the same requests. Once two in a row
    were, later ones are held against the roll as a whole, which costs less than to look up the
    request of each output. All on the roll have streams and will not be sent again.
    """

    def __init__(self) -> None:
        self._records: list[RequestRecord] = []
        self._ids: list[str] = []
        self._names: list[str] = []
        self._timed: list[int] = []

    def match(self, outputs: list[EngineCoreOutput]) -> list[RequestRecord] | None:
        """Give outputs their callers' names and return the request of each.

        None, and nothing has changed, unless they are for exactly the requests on the roll and end
        none of them.
        """
        ids = self._ids
        if not ids or len(ids) != len(outputs):
            return None
        if ids != [output.request_id for output in outputs if output.finish_reason is None]:
            return None
        for output, name in zip(outputs, self._names, strict=True):
            output.request_id = name
        for index in self._timed:
            self._records[index].tokens += len(outputs[index].new_token_ids)
        return self._records

    def note(self, records: list[RequestRecord]) -> None:
        """Take note of whom a message was for that ended none of them; the list is kept."""
        if records != self._records:
            self.clear()
            self._records = records
        elif not any(record.sink is None or record.request is not None for record in records):
            self._ids = [record.internal_id for record in records]
            self._names = [record.request_id for record in records]
            self._timed = [i for i, record in enumerate(records) if record.deadline is not None]

    def clear(self) -> None:
        """Take note that one of the requests may have left."""
        if self._records:
            self._records, self._ids, self._names, self._timed = [], [], [], []
