"""The keys of an EngineCluster, or of an EngineCore of its own: whose, and what is made of them.

All secret keys of a generation are in one Secret, of which a pod mounts its own entry. What clients
mount are copies, whose names stay. The public keys that are let in are in a ConfigMap.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from enginecore_curve.pair import KeyPair
from enginecore_operator.api import labels
from enginecore_operator.api.status import KeysStatus
from enginecore_operator.api.transport import ClusterKeys, Keys
from enginecore_operator.api.v1alpha1 import EngineClusterSpec, EngineCoreSpec, EngineTemplate
from enginecore_operator.api.validate import InvalidSpecError, read_spec
from enginecore_operator.plan import names
from enginecore_operator.plan.actions import Action, Apply, Create
from enginecore_operator.plan.diff import first_difference
from enginecore_operator.plan.key_files import COORDINATOR, CURVE, SERVER
from enginecore_operator.plan.key_rotation import (
    engine_generation,
    listed_generations,
    published_generation,
)
from enginecore_operator.plan.observed import (
    ClusterView,
    CoreView,
    KeysView,
    ObjectMeta,
    ObservedObject,
    ObservedSecret,
)
from enginecore_operator.plan.rendering import owner_reference
from enginecore_wire.public_keys import is_key

INFER: Final = "infer"
ADMIN: Final = "admin"
PARTIES: Final = (SERVER, COORDINATOR, INFER, ADMIN)
"""Entries of a generation's Secret."""
ROLES: Final = (INFER, ADMIN)
SECRET_KEY: Final = "secret-key"  # noqa: S105 - the name of an entry
PUBLIC_KEY: Final = "public-key"


class KeyHolder(msgspec.Struct, frozen=True, kw_only=True):
    """Whose keys they are.

    `state` is how far another generation was when the last pass ended; `in_use` are the public
    keys that its engines have, or are to have, and those of pods that still drain.
    """

    kind: str
    meta: ObjectMeta
    keys: Keys
    state: KeysStatus | None
    in_use: frozenset[str]


class Keyring(msgspec.Struct, frozen=True, kw_only=True):
    """What pods get, and what is to be done about the list of those who are let in.

    `engine` and `coordinator_keys` say where pods find theirs, None where these cannot be had;
    `taken` names what others have in their place.
    """

    engine: ClusterKeys | None
    coordinator_keys: ClusterKeys | None
    actions: tuple[Action, ...]
    taken: tuple[str, ...]

    @property
    def coordinator_key(self) -> str:
        """The coordinator's public key; empty where there is none."""
        return self.coordinator_keys.public_key if self.coordinator_keys else ""


def cluster_holder(view: ClusterView) -> KeyHolder | None:
    """Return what bears on the keys of a cluster; None where it needs none."""
    cluster = view.cluster
    spec = _read_secured(cluster.spec, EngineClusterSpec)
    if spec is None or cluster.metadata.deletion_timestamp is not None:
        return None
    mine = [c for c in view.cores if c.metadata.is_controlled_by(cluster.metadata.uid)]
    given = (core.spec.get("clusterKeys") or {} for core in mine)
    found = {core.status.server_key for core in mine} | {keys.get("publicKey") for keys in given}
    found |= view.pod_keys
    return KeyHolder(
        kind=labels.CLUSTER_KIND,
        meta=cluster.metadata,
        keys=spec.keys,
        state=cluster.status.keys,
        in_use=_keys_among(found),
    )


def core_holder(view: CoreView) -> KeyHolder | None:
    """Return what bears on the keys of an engine; None where it needs none, or its cluster's."""
    core = view.core
    of_others = core.spec.get("clusterKeys") is not None
    if of_others or core.metadata.controller_name(labels.CLUSTER_KIND):
        return None
    if core.metadata.deletion_timestamp is not None:
        return None
    spec = _read_secured(core.spec, EngineCoreSpec)
    if spec is None:
        return None
    found = [pod.metadata.annotations.get(labels.SERVER_KEY) for pod in view.pods]
    return KeyHolder(
        kind=labels.CORE_KIND,
        meta=core.metadata,
        keys=spec.keys,
        state=core.status.keys,
        in_use=_keys_among(found),
    )


def _keys_among(texts: Iterable[str | None]) -> frozenset[str]:
    """Return those that are keys: annotations and status are for others to write, too."""
    return frozenset(text for text in texts if text and is_key(text))


def is_secured(spec: EngineTemplate) -> bool:
    """Tell whether engines speak CURVE."""
    return spec.transport.security == CURVE


def build_keyring(holder: KeyHolder, view: KeysView | None) -> Keyring:
    """Decide what engines and the coordinator get, by what is there."""
    if view is None:
        return Keyring(engine=None, coordinator_keys=None, actions=(), taken=())
    uid, generation = holder.meta.uid, engine_generation(view.state)
    name = names.keys_secret_name(holder.meta.name, generation)
    pairs = pairs_of(holder, view.secrets, generation)
    allowed = names.allowed_keys_name(holder.meta.name)
    there = view.allowed
    listable = there is None or there.metadata.is_controlled_by(uid)
    found = {
        party: ClusterKeys(secret_name=name, public_key=pair.public, allowed_config_map=allowed)
        for party, pair in pairs.items()
        if listable
    }
    taken = [f"Secret {name}" for name in taken_secrets(holder, view.state, view.secrets)]
    if not listable:
        taken.append(f"ConfigMap {allowed}")
    return Keyring(
        engine=found.get(SERVER),
        coordinator_keys=found.get(COORDINATOR),
        actions=_list_actions(holder, view) if listable else (),
        taken=tuple(taken),
    )


def pairs_of(
    holder: KeyHolder, secrets: Mapping[str, ObservedSecret], generation: int
) -> dict[str, KeyPair]:
    """Return the pairs of a generation by party, as far as its Secret is ours and has them."""
    secret = secrets.get(names.keys_secret_name(holder.meta.name, generation))
    if secret is None or not secret.metadata.is_controlled_by(holder.meta.uid):
        return {}
    return {party: secret.pairs[party] for party in PARTIES if party in secret.pairs}


def secret_names(holder: KeyHolder, state: KeysStatus | None) -> list[str]:
    """Return the Secrets to look at, with the generations before and after the present step."""
    generations = {holder.keys.generation}
    if state is not None:
        generations |= {state.generation, state.next or state.generation}
    owner = holder.meta.name
    keys = [names.keys_secret_name(owner, number) for number in sorted(generations)]
    return [*keys, *(names.client_secret_name(owner, role) for role in ROLES)]


def taken_secrets(
    holder: KeyHolder, state: KeysStatus, secrets: Mapping[str, ObservedSecret]
) -> list[str]:
    """Return the names that others' Secrets have, of those that are needed now or are to be."""
    owner = holder.meta.name
    generations = sorted({*listed_generations(state), holder.keys.generation})
    wanted = [names.keys_secret_name(owner, number) for number in generations]
    wanted += [names.client_secret_name(owner, role) for role in ROLES]
    return [
        name
        for name in wanted
        if name in secrets and not secrets[name].metadata.is_controlled_by(holder.meta.uid)
    ]


def is_listed(allowed: ObservedObject | None, pairs: Mapping[str, KeyPair]) -> bool:
    """Tell whether clients' keys are let in already."""
    data = allowed.raw.get("data", {}) if allowed else {}
    return all(role in pairs and pairs[role].public in data.get(role, "").split() for role in ROLES)


def is_published(
    holder: KeyHolder, secrets: Mapping[str, ObservedSecret], pairs: Mapping[str, KeyPair]
) -> bool:
    """Tell whether clients' Secrets hold these keys."""
    return all(
        role in pairs
        and (there := secrets.get(names.client_secret_name(holder.meta.name, role))) is not None
        and holds(there, pairs[role])
        for role in ROLES
    )


def holds(secret: ObservedSecret, pair: KeyPair) -> bool:
    """Tell whether a Secret for clients has both keys of a pair."""
    found = [secret.pairs.get(entry) for entry in (SECRET_KEY, PUBLIC_KEY)]
    return [one.secret if one else "" for one in found] == [pair.secret, pair.public]


def marks(holder: KeyHolder) -> dict[str, str]:
    """Return the labels of what belongs to a holder's keys."""
    own = labels.CLUSTER if holder.kind == labels.CLUSTER_KIND else labels.CORE
    return {**names.common_labels(holder.meta.name), own: holder.meta.name}


def build_allowed_map(holder: KeyHolder, view: KeysView) -> dict[str, Any]:
    """Build the ConfigMap of those who are let in: a file per role, a key per line."""
    generations = listed_generations(view.state)
    lines: dict[str, dict[str, str]] = {role: {} for role in ROLES}
    if holder.kind == labels.CLUSTER_KIND:
        lines |= {SERVER: dict.fromkeys(sorted(holder.in_use), "engine"), COORDINATOR: {}}
    # Engines try the coordinator's keys in this order: the present one comes first.
    for number in sorted(generations, key=lambda n: n != engine_generation(view.state)):
        pairs, note = pairs_of(holder, view.secrets, number), _note(number)
        for party, keys in lines.items():
            # What is not to be had stays as it is listed.
            pair = pairs.get(party)
            keys |= {pair.public: note} if pair else _listed_keys(view, party, note)
    for role, keys in _keys_without_secret(view, lines).items():
        lines[role] |= keys
    for role, given in ((INFER, holder.keys.infer), (ADMIN, holder.keys.admin)):
        for index, key in enumerate(given):
            lines[role].setdefault(key, f"spec.keys.{role}[{index}]")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.allowed_keys_name(holder.meta.name),
            "namespace": holder.meta.namespace,
            "labels": marks(holder),
            "ownerReferences": [owner_reference(holder.kind, holder.meta)],
        },
        "data": {
            party: "".join(f"{key} {note}\n" for key, note in found.items())
            for party, found in lines.items()
        },
    }


def _keys_without_secret(
    view: KeysView, lines: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, str]]:
    """Return keys of the generation that goes which stay though their Secret was lost: clients have
    the only copies. Where the next generation's were lost as well, somebody shuts clients out.
    """
    state, found = view.state, {}
    going, coming = _note(state.generation), _note(published_generation(state))
    if going == coming:
        return {}
    for role in ROLES:
        wanted = {key: note for key, note in lines[role].items() if note == coming}
        if wanted == _listed_keys(view, role, coming):
            found[role] = _listed_keys(view, role, going)
    return found


def _note(generation: int) -> str:
    """Return what the list says of a key of a generation."""
    return f"generation-{generation}"


def _listed_keys(view: KeysView, party: str, note: str) -> dict[str, str]:
    """Return the keys with this note that are let in already."""
    text = view.allowed.raw.get("data", {}).get(party, "") if view.allowed else ""
    found = (line.split() for line in text.splitlines())
    return {words[0]: note for words in found if words[1:] == [note] and is_key(words[0])}


def _list_actions(holder: KeyHolder, view: KeysView) -> tuple[Action, ...]:
    manifest = build_allowed_map(holder, view)
    if view.allowed is None:
        return (Create(manifest),)
    return (Apply(manifest),) if first_difference(manifest, view.allowed.raw) else ()


def _read_secured(raw: dict[str, Any], kind: type[Any]) -> Any:
    """Return a spec that is sound and asks for CURVE, else None."""
    transport = raw.get("transport")
    if isinstance(transport, dict) and transport.get("security", CURVE) != CURVE:
        return None
    try:
        spec = read_spec(raw, kind)
    except InvalidSpecError:
        return None
    return spec if is_secured(spec) else None
