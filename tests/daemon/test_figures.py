"""The figures of several processes as those of one."""

from types import SimpleNamespace
from typing import Any

from mcproxy.daemon.figures import of_shared_limits, summed


def listener(bind: str, *, accepting: bool = True, handshakes: int = 0, protection: Any = None, **versions: int) -> Any:
    return {
        "name": "api",
        "bind": bind,
        "accepting": accepting,
        "handshakes": handshakes,
        "connections": {"HTTP/1.1": versions.get("h1", 0), "HTTP/2.0": versions.get("h2", 0)},
        "requests": {"HTTP/2.0": versions.get("streams", 0)},
        "protection": protection or {},
    }


def test_each_listener_and_cluster_is_once_with_the_sums_of_all_processes() -> None:
    east = {"name": "east", "connections": {"HTTP/2.0": 2}, "requests": {"HTTP/2.0": 30}}
    processes = [
        {
            "listeners": [listener("a:1", h1=1, h2=2, streams=30, handshakes=1, protection={"ping": 2})],
            "clusters": [east],
        },
        {
            "listeners": [listener("a:1", h1=4, streams=1, protection={"ping": 1, "rapid_reset": 5})],
            "clusters": [{"name": "east", "connections": {"HTTP/1.1": 7}, "requests": {"HTTP/1.1": 1}}],
        },
        {},
    ]
    found = summed(processes)
    assert found["listeners"] == [
        listener("a:1", h1=5, h2=2, streams=31, handshakes=1, protection={"ping": 3, "rapid_reset": 5})
    ]
    assert found["clusters"] == [
        {"name": "east", "connections": {"HTTP/2.0": 2, "HTTP/1.1": 7}, "requests": {"HTTP/2.0": 30, "HTTP/1.1": 1}}
    ]


def test_one_process_has_its_own_figures_and_none_is_changed() -> None:
    own = {"listeners": [listener("a:1", h1=3)], "clusters": []}
    assert summed([own]) == own
    assert summed([own, own])["listeners"] == [listener("a:1", h1=6)]
    assert own == {"listeners": [listener("a:1", h1=3)], "clusters": []}


def test_a_listener_accepts_while_one_process_does_and_has_an_entry_for_each_address() -> None:
    found = summed(
        [{"listeners": [listener("a:1", accepting=False), listener("b:2")]}, {"listeners": [listener("a:1")]}]
    )
    assert [(each["bind"], each["accepting"]) for each in found["listeners"]] == [("a:1", True), ("b:2", True)]


def test_shared_state_is_there_where_limits_are_shared() -> None:
    figures = {"replicas": 3, "away": False, "limits": 2}
    shared: Any = SimpleNamespace(figures=figures)
    assert of_shared_limits(shared) == {"sharedState": figures}
    shared.figures = None
    assert of_shared_limits(shared) == of_shared_limits(None) == {}
