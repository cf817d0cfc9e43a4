"""The cache only goes forward, and says what changed."""

from typing import Any

import pytest

from enginecore_operator.kube.cache import Cache, Change


def pod(version: int, uid: str = "u1", name: str = "p", core: str = "c") -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "n",
            "uid": uid,
            "resourceVersion": str(version),
            "labels": {"enginecore.dev/core": core},
        }
    }


@pytest.fixture
def changes() -> list[Change]:
    return []


@pytest.fixture
def cache(changes: list[Change]) -> Cache:
    return Cache(changes.append)


def test_older_news_change_nothing(cache: Cache, changes: list[Change]) -> None:
    assert cache.put("Pod", pod(10))
    assert not cache.put("Pod", pod(9))
    assert not cache.put("Pod", pod(10))
    assert cache.put("Pod", pod(100))
    assert len(changes) == 2


def test_deleted_objects_do_not_come_back(cache: Cache) -> None:
    cache.put("Pod", pod(10))
    assert cache.remove("Pod", "n", "p", "u1")
    assert not cache.put("Pod", pod(11))
    assert cache.put("Pod", pod(12, uid="u2"))


def test_an_object_that_only_left_the_watch_is_found_again(cache: Cache) -> None:
    cache.put("Pod", pod(10))
    cache.remove("Pod", "n", "p", "u1")
    assert not cache.put("Pod", pod(11)), "an event may be an old one"
    going = pod(12)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not cache.put("Pod", going, found=True)
    assert cache.put("Pod", pod(12), found=True)
    assert cache.put("Pod", pod(13))
    assert cache.remove("Pod", "n", "p", "u1")
    assert not cache.put("Pod", pod(14))


def test_deletion_of_a_namesake_is_ignored(cache: Cache) -> None:
    cache.put("Pod", pod(12, uid="u2"))
    assert not cache.remove("Pod", "n", "p", "u1")
    assert cache.get("Pod", "n", "p") is not None


def test_children_by_label(cache: Cache) -> None:
    for name, core in (("b", "c"), ("a", "c"), ("x", "other")):
        cache.put("Pod", pod(1, uid=name, name=name, core=core))
    assert [p.metadata.name for p in cache.children("Pod", "n", "c")] == ["a", "b"]
    cache.put("Pod", pod(2, uid="a", name="a", core="other"))
    assert [p.metadata.name for p in cache.children("Pod", "n", "c")] == ["b"]
    cache.remove("Pod", "n", "b")
    assert cache.children("Pod", "n", "c") == []


def test_replace_counts_what_was_missed(cache: Cache) -> None:
    cache.put("Pod", pod(1, uid="stays", name="stays"))
    cache.put("Pod", pod(2, uid="stale", name="stale"))
    cache.put("Pod", pod(3, uid="gone", name="gone"))
    cache.put("Pod", pod(50, uid="young", name="young"))
    listed = [pod(1, uid="stays", name="stays"), pod(9, uid="stale", name="stale")]
    assert cache.replace("Pod", listed, "40") == 2
    names = sorted(view.metadata.name for view in cache.all("Pod"))
    assert names == ["stale", "stays", "young"]
    assert cache.replace("Pod", listed, "40") == 0


def test_replace_of_one_namespace_leaves_the_others(cache: Cache) -> None:
    cache.put("Pod", pod(1))
    assert cache.replace("Pod", [], "40", namespace="another") == 0
    assert cache.replace("Pod", [], "40", namespace="n") == 1
