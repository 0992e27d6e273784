"""The figures of several processes as those of one."""

import copy
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.apiservices.availability import Availability
from mcproxy.config.model import APIService
from mcproxy.daemon.status.cluster_status import of_api_services
from mcproxy.daemon.status.process_status import summed
from mcproxy.daemon.status.server_status import of_shared_limits


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


def test_one_process_has_its_own_figures() -> None:
    def own() -> Any:
        return {"listeners": [listener("a:1", h1=3)], "clusters": []}

    assert summed([own()]) == own()
    assert summed([own(), own()])["listeners"] == [listener("a:1", h1=6)]


def test_a_listener_accepts_while_one_process_does_and_has_an_entry_for_each_address() -> None:
    found = summed(
        [{"listeners": [listener("a:1", accepting=False), listener("b:2")]}, {"listeners": [listener("a:1")]}]
    )
    assert [(each["bind"], each["accepting"]) for each in found["listeners"]] == [("a:1", True), ("b:2", True)]


def test_shared_state_is_there_where_limits_are_shared() -> None:
    figures = {"replicas": 3, "away": False, "limits": 2}
    assert of_shared_limits(figures) == {"sharedState": figures}
    assert of_shared_limits(None) == {}


def test_facts_are_those_of_the_first_process_that_knows_them() -> None:
    """The leader comes first: it checks the health, the others learn it."""

    def endpoint(**fields: Any) -> Any:
        return {"clusters": [{"name": "east", "rightsMissing": None, "endpoints": [{"url": "a", **fields}]}]}

    leader: Any = endpoint(ready=False, state="out", cause="refused", inFlight=1, latencySeconds=None)
    other: Any = endpoint(ready=True, state="ready", cause="", inFlight=2, latencySeconds=0.5)
    other["clusters"][0]["rightsMissing"] = ["list pods"]
    cluster: Any = summed([leader, other])["clusters"][0]
    assert cluster["rightsMissing"] == ["list pods"]
    assert cluster["endpoints"] == [
        {"url": "a", "ready": False, "state": "out", "cause": "refused", "inFlight": 3, "latencySeconds": 0.5}
    ]


def test_a_credential_is_refused_if_one_process_was_told_so() -> None:
    def process(refused: bool) -> Any:
        return {"clusters": [{"name": "east", "credentials": {"ready": True, "refused": refused}}]}

    for refused in ((True, False), (False, True)):
        (cluster,) = cast(Any, summed(map(process, refused))["clusters"])
        assert cluster["credentials"] == {"ready": True, "refused": True}


def test_reviews_of_one_kind_are_added_and_lists_without_an_identity_are_not() -> None:
    def process(waiting: int) -> Any:
        reviewer = {"kind": "tokens", "name": "corp", "waiting": waiting}
        return {"reviews": {"waiting": waiting, "reviewers": [reviewer]}, "something": ["a"]}

    found = summed([process(1), {}, process(2)])
    assert found["reviews"] == {"waiting": 3, "reviewers": [{"kind": "tokens", "name": "corp", "waiting": 3}]}
    assert found["something"] == ["a"]


def by_name(entry: Any) -> Any:
    return entry["name"]


def by_url(entry: Any) -> Any:
    return entry["url"]


names = st.sampled_from(["a", "b", "c"])
counts = st.integers(0, 9)
versions = st.dictionaries(st.sampled_from(["HTTP/1.1", "HTTP/2.0"]), counts)
listeners = st.builds(
    lambda name, accepting, connections, handshakes: {
        "name": name,
        "bind": name,
        "accepting": accepting,
        "connections": connections,
        "handshakes": handshakes,
        "limits": {"connections": 100},
    },
    names,
    st.booleans(),
    versions,
    counts,
)
endpoints = st.builds(lambda url, number: {"url": url, "ready": True, "inFlight": number}, names, counts)
clusters = st.builds(
    lambda name, connections, found: {"name": name, "connections": connections, "endpoints": found},
    names,
    versions,
    st.lists(endpoints, max_size=3, unique_by=by_url),
)
figures = st.fixed_dictionaries(
    {},
    optional={
        "listeners": st.lists(listeners, max_size=3, unique_by=by_name),
        "clusters": st.lists(clusters, max_size=3, unique_by=by_name),
        "reviews": st.fixed_dictionaries({"waiting": counts, "reviewers": st.just([])}),
    },
)


def in_all(entries: Any, key: str) -> int:
    """Everything that is counted below `key` in a list of entries, or in what they hold."""
    total = 0
    for entry in entries:
        for name, value in entry.items():
            if isinstance(value, list):
                total += in_all(value, key)
            elif name == key:
                total += sum(value.values()) if isinstance(value, dict) else value
    return total


def total(processes: Any) -> Any:
    """The sum, which is given copies: it changes what it is given."""
    return summed(copy.deepcopy(processes))


@settings(max_examples=50)
@given(st.lists(figures, max_size=4))
def test_nothing_is_lost_or_counted_twice(processes: list[Any]) -> None:
    found = total(processes)
    for section, key in (("listeners", "connections"), ("listeners", "handshakes"), ("clusters", "inFlight")):
        every = [entry for process in processes for entry in process.get(section, ())]
        assert in_all(found[section], key) == in_all(every, key)
        assert {each["name"] for each in found[section]} == {each["name"] for each in every}
        assert len({each["name"] for each in found[section]}) == len(found[section])
    assert all(each["limits"] == {"connections": 100} for each in found["listeners"])


@settings(max_examples=50)
@given(figures, figures, figures)
def test_sums_of_sums_are_sums_and_who_says_nothing_changes_nothing(one: Any, two: Any, three: Any) -> None:
    assert total([total([one, two]), three]) == total([one, total([two, three])])
    assert total([{}, one, {}]) == total([one])


def test_who_sends_most_is_added_up_by_name() -> None:
    def senders(**users: int) -> dict[str, Any]:
        entries = [{"name": name, "requests": number} for name, number in users.items()]
        return {"senders": {"windowSeconds": 290.0, "total": {"requests": sum(users.values())}, "users": entries}}

    found = total([senders(jane=5, bob=1), senders(bob=7), {}])["senders"]
    assert found["windowSeconds"] == 290.0
    assert found["total"] == {"requests": 13}
    assert {each["name"]: each["requests"] for each in found["users"]} == {"jane": 5, "bob": 8}


def test_an_api_service_that_several_processes_know_is_one() -> None:
    known = Availability(lambda: 1.0)
    known.use({"web": [APIService(group="zoo.io", version="v1", cluster="zoo")]})
    documents = [{"apiServices": of_api_services(known)} for _ in range(3)]
    assert summed(documents)["apiServices"] == of_api_services(known)
    assert of_api_services(known)[0]["usedBy"] == ["web"]
