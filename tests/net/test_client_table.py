"""Who has how many connections, and which one makes room."""

from __future__ import annotations

from collections import Counter

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress

from mcproxy.net.client_table import ALL, UNIX, UNKNOWN, ClientTable, ClientTableOfProcess, client_of, network


class FakeConnection:
    def __init__(self, idle_since: float | None) -> None:
        self.idle_since = idle_since


def table(**clients: list[float | None]) -> tuple[ClientTable[FakeConnection], dict[str, list[FakeConnection]]]:
    """A table with connections that are idle since the given times."""
    made: ClientTable[FakeConnection] = ClientTable()
    connections = {client: [FakeConnection(since) for since in times] for client, times in clients.items()}
    for client, ones in connections.items():
        for connection in ones:
            made.add(client, connection)
    return made, connections


def test_counts() -> None:
    made, connections = table(a=[1, 2, 3], b=[1])
    assert (len(made), made.count("a"), made.count("b"), made.count("c")) == (4, 3, 1, 0)
    made.remove("a", connections["a"][0])
    made.remove("b", connections["b"][0])
    assert (len(made), made.count("a"), made.count("b")) == (2, 2, 0)


def test_longest_idle_of_the_client_that_has_most_makes_room() -> None:
    made, connections = table(a=[1.0, 2.0], b=[7.0, None, 6.0, 9.0], c=[0.0])
    assert made.longest_idle(10.0) == ("b", connections["b"][2])


def test_next_client_if_that_one_has_none_idle() -> None:
    made, connections = table(a=[None, None, None], b=[4.0, 3.0], c=[0.0])
    assert made.longest_idle(10.0) == ("b", connections["b"][1])


def test_none_if_all_are_busy_and_no_search_for_a_moment() -> None:
    made, connections = table(a=[None, None], b=[None])
    assert made.longest_idle(10.0) is None
    connections["b"][0].idle_since = 10.0
    assert made.longest_idle(10.1) is None
    assert made.longest_idle(11.0) == ("b", connections["b"][0])


def test_remembered_candidates_are_checked_again() -> None:
    made, connections = table(a=[float(number) for number in range(50)])
    ones = connections["a"]
    assert made.longest_idle_of("a") is ones[0]
    made.remove("a", ones[0])
    ones[1].idle_since = None  # a request came
    ones[2].idle_since = 99.0  # and here one has ended
    made.remove("a", ones[3])
    assert made.longest_idle_of("a") is ones[4]


def test_flood_of_one_client_is_searched_rarely() -> None:
    looks = 0

    class Counted:
        @property
        def idle_since(self) -> float:
            nonlocal looks
            looks += 1
            return 1.0

    made: ClientTable[Counted] = ClientTable()
    for _ in range(1000):
        made.add("a", Counted())
    for _ in range(320):
        found = made.longest_idle(5.0)
        assert found is not None
        made.remove(*found)
        made.add("a", Counted())
    assert looks < 320 * 50


def test_client_is_an_ipv4_address_or_an_ipv6_network_or_a_unix_socket() -> None:
    assert client_of(IPv4Address("TCP", "10.0.0.1", 5)) == "10.0.0.1"
    assert client_of(IPv6Address("TCP", "2001:db8:1:2:3::9", 5)) == client_of(IPv6Address("TCP", "2001:db8:1:2::1", 6))
    assert client_of(IPv6Address("TCP", "2001:db8:1:3::9", 5)) == "2001:db8:1:3::/64"
    assert client_of(IPv6Address("TCP", "::ffff:10.0.0.1", 5)) == "10.0.0.1"
    assert client_of(UNIXAddress(None)) == "unix:"
    assert network("fe80::1%eth0") == "fe80::/64"
    assert network("other clients") == "other clients"
    assert network("a:b") == "a:b"


# -- several processes -----------------------------------------------------------------------------------------


class CountedPlaces:
    """Places of all processes, in memory."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def take(self, client: str, limit: int) -> bool:
        if self.counts[client] >= limit:
            return False
        self.counts[client] += 1
        return True

    def take_beyond(self, client: str) -> None:
        self.counts[client] += 1

    def release(self, client: str) -> None:
        self.counts[client] -= 1
        assert self.counts[client] >= 0


def test_limits_count_the_connections_of_all_processes() -> None:
    places = CountedPlaces()
    one: ClientTable[FakeConnection] = ClientTableOfProcess(places)
    other: ClientTable[FakeConnection] = ClientTableOfProcess(places)
    first = FakeConnection(None)
    assert not one.is_full(2)
    one.add("a", first)
    assert not other.is_full(2)
    assert other.is_full_for("a", 1)
    other.not_added()
    assert not other.is_full(2)
    assert not other.is_full_for("b", 1)
    other.add("b", FakeConnection(None))
    assert one.is_full(2)
    assert (len(one), len(other)) == (1, 1)
    one.remove("a", first)
    assert not one.is_full(2)
    one.not_added()
    assert +places.counts == {ALL: 1, "b": 1}


def test_a_connection_that_replaces_an_idle_one_counts_beyond_the_limit() -> None:
    places = CountedPlaces()
    one: ClientTable[FakeConnection] = ClientTableOfProcess(places)
    idle, new = FakeConnection(1.0), FakeConnection(None)
    one.add("a", idle)
    assert one.is_full(1)
    one.add("a", new)
    one.remove("a", idle)
    assert +places.counts == {ALL: 1, "a": 1}


def test_the_place_stays_taken_while_a_connection_becomes_another_object_and_its_client_is_found() -> None:
    places = CountedPlaces()
    table: ClientTable[FakeConnection] = ClientTableOfProcess(places)
    pending, stream = FakeConnection(1.0), FakeConnection(None)
    table.add(UNKNOWN, pending)
    assert not table.is_full_for("a", 1)
    table.move(UNKNOWN, pending, "a", pending)
    table.move("a", pending, "a", stream)
    assert +places.counts == {ALL: 1, "a": 1}
    assert table.count("a") == 1
    table.remove("a", stream)
    assert +places.counts == {}
    table.add(UNIX, pending)
    assert +places.counts == {ALL: 1}
