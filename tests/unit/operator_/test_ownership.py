"""Fields that a creation set become those of an apply."""

from typing import Any

from enginecore_operator.kube.ownership import adopt_fields


def entry(operation: str, fields: dict[str, Any], **more: str) -> dict[str, Any]:
    given = {"manager": "enginecore-operator", "operation": operation, "apiVersion": "v1", **more}
    return {**given, "fieldsType": "FieldsV1", "fieldsV1": fields}


STATUS = entry("Update", {"f:status": {"f:phase": {}}}, subresource="status")
BY_HAND = entry("Update", {"f:metadata": {"f:annotations": {"f:a": {}}}}, manager="kubectl-edit")


def test_a_creation_becomes_an_apply() -> None:
    made = entry("Update", {"f:spec": {"f:type": {}}})
    assert adopt_fields([BY_HAND, made, STATUS], whole_spec=False) == [
        entry("Apply", {"f:spec": {"f:type": {}}}),
        BY_HAND,
        STATUS,
    ]


def test_fields_of_both_are_put_together() -> None:
    made = entry("Update", {"f:spec": {"f:env": {".": {}, 'k:{"name":"A"}': {".": {}}}}})
    applied = entry("Apply", {"f:spec": {"f:env": {'k:{"name":"B"}': {".": {}}}, "f:x": {}}})
    both = {".": {}, 'k:{"name":"A"}': {".": {}}, 'k:{"name":"B"}': {".": {}}}
    assert adopt_fields([applied, made], whole_spec=False) == [
        entry("Apply", {"f:spec": {"f:env": both, "f:x": {}}})
    ]


def test_what_was_adopted_stays() -> None:
    assert adopt_fields([entry("Apply", {"f:spec": {}}), STATUS, BY_HAND], whole_spec=False) is None


def test_of_a_spec_that_is_ours_alone_what_others_set_is_taken_over() -> None:
    applied = entry("Apply", {"f:spec": {"f:env": {'k:{"name":"B"}': {".": {}}}}})
    edit = entry("Update", {"f:spec": {"f:env": {'k:{"name":"A"}': {".": {}}}}}, manager="edit")
    both = {'k:{"name":"A"}': {".": {}}, 'k:{"name":"B"}': {".": {}}}
    ours = entry("Apply", {"f:spec": {"f:env": both}})
    assert adopt_fields([applied, edit, STATUS], whole_spec=True) == [ours, STATUS]
    assert adopt_fields([applied, edit, STATUS], whole_spec=False) is None
    mixed = entry("Update", {"f:metadata": {"f:labels": {}}, "f:spec": {"f:x": {}}}, manager="edit")
    assert adopt_fields([mixed], whole_spec=True) == [
        entry("Apply", {"f:spec": {"f:x": {}}}),
        entry("Update", {"f:metadata": {"f:labels": {}}}, manager="edit"),
    ]
