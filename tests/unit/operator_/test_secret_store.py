"""Secrets as the operator reads, keeps and writes them: nothing is missing that is there."""

import base64
import json
import traceback
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from enginecore_curve.keys import new_key_pair
from enginecore_operator.key_keeper import KeyKeeper
from enginecore_operator.kube.cache import Cache
from enginecore_operator.kube.errors import KubeError, UnreachableError, error_from_response
from enginecore_operator.kube.secrets import FRESH_SECONDS, SecretStore, read_secret
from enginecore_operator.plan.actions import Create, ObjectRef, Patch
from enginecore_operator.plan.keys import PARTIES, KeyHolder, cluster_holder
from enginecore_operator.plan.observed import ClusterView
from support.key_chest import LAG, SECURED
from support.operator_objects import NAMESPACE, cluster_spec, observed_cluster
from support.secret_server import SecretServer, fresh_pairs, secret

OWNER = "uid-smollm"
KEYS, CLIENT, ADMIN = "smollm-keys-1", "smollm-client", "smollm-admin"


def store_of(server: SecretServer) -> SecretStore:
    client: Any = server
    return SecretStore(client, server.clock)


def keeper_of(server: SecretServer, store: SecretStore) -> KeyKeeper:
    """Return a keeper whose list of those who are let in is not there yet."""
    no_executor: Any = None
    return KeyKeeper(
        store,
        Cache(lambda _: None),
        no_executor,
        new_key_pair,
        lag=LAG,
        now=lambda: datetime.fromtimestamp(server.time, UTC),
    )


def holder(**spec: Any) -> KeyHolder:
    found = cluster_holder(ClusterView(cluster=observed_cluster(cluster_spec(**SECURED, **spec))))
    assert found is not None
    return found


async def test_what_is_there_is_found_though_another_pass_forgets_it() -> None:
    """One answer is old enough to be asked for again; the other becomes so meanwhile."""
    pairs = fresh_pairs("server")
    server = SecretServer(secret(KEYS, **pairs), secret(CLIENT, **pairs))
    store = store_of(server)
    await store.read(NAMESPACE, [CLIENT])
    server.time += 0.02
    await store.read(NAMESPACE, [KEYS])

    async def another_pass() -> None:
        server.time += 0.03
        await store.read(NAMESPACE, ["others"])

    server.meanwhile[CLIENT] = another_pass
    server.time += FRESH_SECONDS - 0.01
    assert sorted(await store.read(NAMESPACE, [KEYS, CLIENT])) == [CLIENT, KEYS]


async def test_clients_get_no_key_but_of_a_secret_that_was_written() -> None:
    """Somebody made the generation's Secret in between: its keys are those that count."""
    server = SecretServer()
    there = secret(KEYS, OWNER, **fresh_pairs(*PARTIES))

    async def made_by_another() -> None:
        server.objects[KEYS] = there

    server.meanwhile[ADMIN] = made_by_another
    view = await keeper_of(server, store_of(server)).make(holder())
    expected = read_secret(there).pairs
    assert view.secrets[KEYS].pairs == expected
    assert read_secret(server.objects[CLIENT]).pairs["secret-key"] == expected["infer"]
    assert read_secret(server.objects[ADMIN]).pairs["secret-key"] == expected["admin"]


PLAIN = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
ENCODED = base64.b64encode(PLAIN.encode()).decode()
NO_WORDS = "its words are left out, as they repeat what is secret"
TALES = [
    (403, "Forbidden", "exceeded quota: secrets", "403 Forbidden: exceeded quota: secrets"),
    (403, "Forbidden", f"no data {ENCODED}", f"403 Forbidden: {NO_WORDS}"),
    (422, "Invalid", f"not {PLAIN}", f"422 Invalid: {NO_WORDS}"),
    (422, "Invalid", json.dumps(PLAIN).replace(">", r"\u003e"), f"422 Invalid: {NO_WORDS}"),
    (422, "Invalid", f"not {ENCODED[:9]}...", f"422 Invalid: {NO_WORDS}"),
    (418, "", f"not {PLAIN}", f"418: {NO_WORDS}"),
    (429, "TooManyRequests", "later", "429 TooManyRequests: later"),
    (429, "TooManyRequests", f"later {ENCODED}", f"429 TooManyRequests: {NO_WORDS}"),
    (500, "InternalError", f"webhook failed on {PLAIN}", f"500 InternalError: {NO_WORDS}"),
    (504, "", f"no answer to {ENCODED}", f"504: {NO_WORDS}"),
]


@pytest.mark.parametrize(("status", "reason", "message", "words"), TALES)
@pytest.mark.parametrize("there", [False, True], ids=["create", "patch"])
async def test_no_error_tells_a_secret(
    status: int, reason: str, message: str, words: str, there: bool
) -> None:
    server = SecretServer()
    body = json.dumps({"reason": reason, "message": message}).encode()
    server.refusal = lambda _: error_from_response(status, body)
    data = {"secret-key": ENCODED, "gone": None}
    ref = ObjectRef("Secret", NAMESPACE, CLIENT, "u")
    manifest = {"metadata": {"name": CLIENT, "namespace": NAMESPACE}, "data": data}
    action = Patch(ref, {"data": data}) if there else Create(manifest)
    with pytest.raises(KubeError) as caught:
        await store_of(server).carry_out(action)
    assert str(caught.value) == words
    assert isinstance(caught.value, UnreachableError) == (status == 429 or status >= 500)
    assert PLAIN not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("stale", [CLIENT, ADMIN])
async def test_a_copy_that_was_deleted_too_brings_no_key_back(stale: str) -> None:
    """It was read later than its original, so its answer would still serve."""
    server = SecretServer()
    store = store_of(server)
    keeper, mine = keeper_of(server, store), holder()
    first = await keeper.make(mine)
    mine = msgspec.structs.replace(mine, state=first.state)
    server.time += FRESH_SECONDS / 2
    store.forget(NAMESPACE, [stale])
    assert list(await store.read(NAMESPACE, [stale])) == [stale]
    server.time += FRESH_SECONDS / 2
    server.objects.clear()
    view = await keeper.make(mine)
    now = read_secret(server.objects[KEYS]).pairs
    assert not {*now.values()} & {*first.secrets[KEYS].pairs.values()}
    for name, party in ((CLIENT, "infer"), (ADMIN, "admin")):
        assert read_secret(server.objects[name]).pairs["secret-key"] == now[party]
    (event,) = view.news
    assert event.message.endswith("made new ones of server, coordinator, infer, admin")
