"""Whose the fields of an object are: what we created is to be ours as what we apply is."""

from typing import Any

from enginecore_operator.api.labels import FIELD_MANAGER

Fields = dict[str, Any]


def adopt_fields(entries: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Return `metadata.managedFields` with our creation turned into an apply; None if there is
    none.

    An object is made by POST, as nothing else refuses to change one that is there. The API server
    counts that as an update, and an apply that leaves a field out removes it only if no update
    holds it, too.
    """
    created = [entry for entry in entries if _is_ours(entry, "Update")]
    if not created:
        return None
    applied = [entry for entry in entries if _is_ours(entry, "Apply")]
    fields: Fields = {}
    for entry in (*applied, *created):
        fields = _union(fields, entry.get("fieldsV1", {}))
    ours = {**(applied or created)[0], "operation": "Apply", "fieldsV1": fields}
    others = [entry for entry in entries if entry not in created and entry not in applied]
    return [ours, *others]


def _is_ours(entry: dict[str, Any], operation: str) -> bool:
    return (
        entry.get("manager") == FIELD_MANAGER
        and entry.get("operation") == operation
        and not entry.get("subresource")
    )


def _union(one: Fields, other: Fields) -> Fields:
    return one | {name: _union(one.get(name, {}), inner) for name, inner in other.items()}
