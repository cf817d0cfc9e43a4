"""What the core makes of keys: which one a connection is opened with, and what ends it."""

from typing import Any

import pytest

from enginecore_client import AuthenticationError, StaticSource
from enginecore_client._addresses.addresses import ClientAddresses
from enginecore_client._addresses.sources import RankSource
from enginecore_client._core.connection import CUT_OFF_SECONDS
from enginecore_client._core.events import Open, Subscribe
from enginecore_client._core.states import Channel
from enginecore_curve.keys import new_key_pair
from support.core_steps import add
from support.memory_link import MemoryLink

KEYS = [new_key_pair().public for _ in range(3)]


def given(*names: str, **more: Any) -> ClientAddresses:
    return ClientAddresses.from_dict(
        {
            "input_address": [f"ipc://{name}/in" for name in names],
            "output_address": [f"ipc://{name}/out" for name in names],
        }
        | more
    )


def keys_of(addresses: ClientAddresses | None) -> list[str]:
    assert addresses is not None
    return [endpoint.server_key for endpoint in addresses.endpoints]


def opened(link: MemoryLink, addresses: ClientAddresses) -> list[str]:
    """Return the keys with which connections are opened for new addresses."""
    link.core.set_addresses(addresses, link.now)
    actions = link.core.take_actions()
    return [action.endpoint.server_key for action in actions if isinstance(action, Open)]


def test_each_engine_has_the_key_of_its_index() -> None:
    assert keys_of(given("a", "b")) == ["", ""]
    assert keys_of(given("a", "b", server_key=KEYS[0])) == [KEYS[0], KEYS[0]]
    both = given("a", "b", server_key=[KEYS[0], ""])
    assert keys_of(both) == [KEYS[0], ""]
    assert both.checked() == both
    chosen = RankSource(StaticSource(given("a", "b", server_key=KEYS[:2])), [1])
    assert keys_of(chosen.poll(0.0)) == [KEYS[1]]


def test_a_new_key_counts_at_once_only_where_the_old_one_led_nowhere() -> None:
    link = MemoryLink("a", "b", ready=False)
    assert opened(link, given("a", "b", server_key=KEYS[0])) == [KEYS[0], KEYS[0]]
    assert opened(link, given("a", "b", server_key=[KEYS[0], KEYS[1]])) == [KEYS[1]]
    ready = MemoryLink("a")
    assert opened(ready, given("a", server_key=KEYS[0])) == []
    ready.down(ready.pod("a"))
    ready.wait(1.0)
    (endpoint,) = (c.endpoint for c in ready.core._fleet.connections.values())
    assert endpoint.server_key == KEYS[0]


def test_the_coordinators_key_is_followed() -> None:
    link = MemoryLink("a")
    for key in (KEYS[0], KEYS[1]):
        addresses = given("a", stats_update_address="tcp://10.0.0.1:1", stats_server_key=key)
        link.core.set_addresses(addresses, link.now)
        wanted = [a for a in link.core.take_actions() if isinstance(a, Subscribe)]
        assert wanted == [Subscribe("tcp://10.0.0.1:1", 0, key)]


def test_a_refusal_ends_the_wait_and_is_tried_again() -> None:
    link = MemoryLink("a", ready=False)
    first = link.pod("a").link
    link.core.links.refused(first, AuthenticationError("no such key"), link.now)
    refusal = link.core.refusal()
    assert isinstance(refusal, AuthenticationError)
    assert refusal.message == "an engine refuses this client: ipc://a/in: no such key"
    with pytest.raises(AuthenticationError, match="no such key"):
        add(link)
    link.answers = True
    link.wait(1.0)
    assert link.pod("a").link != first
    assert link.core.all_ready()
    assert link.core.refusal() is None
    link.core.links.refused(first, AuthenticationError("too late"), link.now)
    assert link.core.all_ready()


def test_handshakes_without_a_word_are_forgiven_for_a_while() -> None:
    link = MemoryLink("a", ready=False)
    pod = link.pod("a").link

    def cut() -> None:
        link.core.links.refused(pod, None, link.now)

    cut()
    link.now += CUT_OFF_SECONDS - 1
    cut()
    assert link.core.refusal() is None
    link.core.links.connected(pod, Channel.INPUT, link.now)
    link.now += CUT_OFF_SECONDS
    cut()
    assert link.core.refusal() is None, "a connection stood in between"
    link.now += CUT_OFF_SECONDS
    cut()
    refusal = link.core.refusal()
    assert isinstance(refusal, AuthenticationError)
    assert "server_key" in refusal.message
