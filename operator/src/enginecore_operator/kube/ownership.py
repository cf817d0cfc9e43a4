"""Whose the fields of an object are: an apply removes only what no one but applies has set."""

from typing import Any, Final

from enginecore_operator.api.labels import FIELD_MANAGER

Fields = dict[str, Any]
Entry = dict[str, Any]

_SPEC: Final = "f:spec"


def adopt_fields(entries: list[Entry], *, whole_spec: bool) -> list[Entry] | None:
    """Return `metadata.managedFields` by which an apply of ours removes what it leaves out; None
    if it does so already.

    What we created becomes what we applied: an object is made by POST, as nothing else refuses to
    change one that is there, and the API server counts that as an update.

    Args:
        entries: the managedFields of the object.
        whole_spec: its spec is ours alone, so that what others set in it is to go, too.
    """
    created = [entry for entry in entries if _is_ours(entry, "Update")]
    applied = [entry for entry in entries if _is_ours(entry, "Apply")]
    others = [entry for entry in entries if entry not in created and entry not in applied]
    edited = [e for e in others if whole_spec and not e.get("subresource") and _SPEC in _fields(e)]
    if not created and not edited:
        return None
    fields: Fields = {}
    for entry in (*applied, *created):
        fields = _union(fields, _fields(entry))
    for entry in edited:
        fields = _union(fields, {_SPEC: _fields(entry)[_SPEC]})
    first = (applied or created or edited)[0]
    ours = {**first, "manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}
    left = (_without_spec(entry) if entry in edited else entry for entry in others)
    return [ours, *(entry for entry in left if _fields(entry))]


def _is_ours(entry: Entry, operation: str) -> bool:
    return (
        entry.get("manager") == FIELD_MANAGER
        and entry.get("operation") == operation
        and not entry.get("subresource")
    )


def _fields(entry: Entry) -> Fields:
    fields: Fields = entry.get("fieldsV1", {})
    return fields


def _without_spec(entry: Entry) -> Entry:
    return {**entry, "fieldsV1": {k: v for k, v in _fields(entry).items() if k != _SPEC}}


def _union(one: Fields, other: Fields) -> Fields:
    return one | {name: _union(one.get(name, {}), inner) for name, inner in other.items()}
