"""The figures of tunnels: of one process, and those of several as one."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from mcproxy.daemon.status.process_status import summed
from mcproxy.daemon.status.tunnel_status import NEVER, of_edge, of_hub, with_conditions
from mcproxy.net.alpn import H2, HTTP1_1

NOW, WALL = 1000.0, 1_790_000_000.0  # the latter is 2026-09-21T14:13:20Z


def control(peer: str = "192.0.2.7", instance: bytes = b"0123456789abcdef" * 2, rtt: float = 0.02) -> Any:
    return SimpleNamespace(peer=peer, instance=instance, opened_at=NOW - 60, engine=SimpleNamespace(rtt=rtt))


def state(*controls: Any, since: float = WALL - 60, loss: str = "", **counts: int) -> Any:
    alpns = {H2: counts.get("h2", 0), HTTP1_1: counts.get("h1", 0)}
    return SimpleNamespace(
        name="site-a",
        is_up=bool(controls),
        since=datetime.fromtimestamp(since, UTC),
        loss=loss,
        controls=list(controls),
        counts=lambda: {alpn: number for alpn, number in alpns.items() if number},
    )


def link(url: str, *, up: bool = True, age: float = 60.0, replaced: Any = None, **changes: Any) -> Any:
    found = {"connections": 2, "rtt": 0.03 if up else 0.0, "cause": "" if up else "no answer", **changes}
    return SimpleNamespace(url=url, is_up=up, changed_at=NOW - age, replaced=replaced, **found)


def edge(*links: Any, **counts: tuple[int, int]) -> Any:
    dialer: Any = SimpleNamespace(tunnel="site-b", links=links)
    return of_edge("hub", dialer, counts or {"HTTP/2.0": (2, 5), "HTTP/1.1": (1, 0)}, WALL, NOW)


def shown(*processes: list[Any]) -> list[Any]:
    """The entries of the document; each process reports a list."""
    return with_conditions(summed({"tunnels": copy.deepcopy(each)} for each in processes)["tunnels"])


def test_a_tunnel_of_a_hub() -> None:
    assert shown(of_hub([state(control(), control(rtt=0.0), h2=2, h1=1)], WALL, NOW)) == [
        {
            "name": "site-a",
            "role": "hub",
            "connected": True,
            "since": "2026-09-21T14:12:20Z",
            "cause": None,
            "peers": [
                {"peer": "192.0.2.7", "instance": "01234567", "since": "2026-09-21T14:12:20Z", "rttSeconds": 0.02},
                {"peer": "192.0.2.7", "instance": "01234567", "since": "2026-09-21T14:12:20Z", "rttSeconds": None},
            ],
            "connections": {"HTTP/1.1": 1, "HTTP/2.0": 2},
        }
    ]


def test_a_tunnel_of_a_hub_that_is_down() -> None:
    [lost] = shown(of_hub([state(loss="the edge has closed it")], WALL, NOW))
    assert (lost["connected"], lost["since"], lost["cause"]) == (
        False,
        "2026-09-21T14:12:20Z",
        "the edge has closed it",
    )
    [never] = shown(of_hub([state()], WALL, NOW))
    assert (never["connected"], never["cause"], never["peers"]) == (False, NEVER, [])


def test_an_edge() -> None:
    [found] = shown([edge(link("https://a"), link("https://b", up=False, connections=0))])
    assert found == {
        "name": "site-b",
        "role": "edge",
        "listener": "hub",
        "connected": False,
        "hubs": [
            {
                "url": "https://a",
                "connected": True,
                "since": "2026-09-21T14:12:20Z",
                "cause": None,
                "connections": 2,
                "rttSeconds": 0.03,
            },
            {
                "url": "https://b",
                "connected": False,
                "since": "2026-09-21T14:12:20Z",
                "cause": "no answer",
                "connections": 0,
                "rttSeconds": None,
            },
        ],
        "connections": {"HTTP/2.0": 2, "HTTP/1.1": 1},
    }
    [all_up] = shown([edge(link("https://a"), link("https://b"))])
    assert all_up["connected"]
    [none] = shown([edge()])  # before it dials
    assert (none["connected"], none["hubs"]) == (False, [])


def test_a_link_with_new_settings_has_the_state_of_the_former_one_until_it_is_up() -> None:
    former = link("https://a", connections=3, rtt=0.5)
    [before] = shown([edge(link("https://a", up=False, connections=0, replaced=former))])[0]["hubs"]
    assert (before["connected"], before["cause"], before["rttSeconds"], before["connections"]) == (True, None, 0.5, 3)
    lost = link("https://a", up=False, cause="lost")
    [both] = shown([edge(link("https://a", up=False, cause="new", replaced=lost))])[0]["hubs"]
    assert (both["connected"], both["cause"]) == (False, "new")


def test_workers_of_a_hub_are_connected_if_one_is() -> None:
    without = state(since=WALL - 500)
    with_control = state(control(), since=WALL - 60, h2=2)
    for order in ([without, with_control], [with_control, without]):
        [found] = shown(*(of_hub([each], WALL, NOW) for each in order))
        assert (found["connected"], found["since"], found["cause"]) == (True, "2026-09-21T14:12:20Z", None)
        assert len(found["peers"]) == 1
        assert found["connections"] == {"HTTP/2.0": 2}
    [sums] = shown(of_hub([with_control], WALL, NOW), of_hub([state(control("192.0.2.8"), h2=1, h1=4)], WALL, NOW))
    assert sums["connections"] == {"HTTP/2.0": 3, "HTTP/1.1": 4}
    assert [peer["peer"] for peer in sums["peers"]] == ["192.0.2.7", "192.0.2.8"]
    assert [peer["rttSeconds"] for peer in sums["peers"]] == [0.02, 0.02]


def test_workers_of_a_hub_without_a_connection_have_the_last_loss() -> None:
    never, first = state(since=WALL - 10), state(since=WALL - 90, loss="first")
    last = state(since=WALL - 60, loss="last")
    for order in ([never, first, last], [last, never, first], [first, last, never]):
        [found] = shown(*(of_hub([each], WALL, NOW) for each in order))
        assert (found["connected"], found["since"], found["cause"]) == (False, "2026-09-21T14:12:20Z", "last")


def test_workers_of_an_edge_have_one_entry_for_each_hub() -> None:
    [found] = shown(
        [edge(link("https://a", age=30), link("https://b", up=False, connections=0))],
        [edge(link("https://a", age=60), link("https://b", connections=1))],
    )
    assert found["connected"]
    assert [hub["connections"] for hub in found["hubs"]] == [4, 1]
    assert [hub["rttSeconds"] for hub in found["hubs"]] == [0.03, 0.03]
    assert [hub["since"] for hub in found["hubs"]] == ["2026-09-21T14:12:20Z"] * 2
    assert found["connections"] == {"HTTP/2.0": 4, "HTTP/1.1": 2}


def test_a_tunnel_of_both_roles_and_of_two_listeners_are_entries_of_their_own() -> None:
    hub = of_hub([state(control())], WALL, NOW)
    first, second = edge(link("https://a")), {**edge(link("https://b")), "listener": "other"}
    same_name = {**edge(link("https://a")), "name": "site-a"}
    found = shown([*hub, first, second, same_name], [*hub, first, second, same_name])
    assert [(each["name"], each["role"], each.get("listener")) for each in found] == [
        ("site-a", "hub", None),
        ("site-b", "edge", "hub"),
        ("site-b", "edge", "other"),
        ("site-a", "edge", "hub"),
    ]
