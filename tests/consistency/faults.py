"""The faults, drawn by a seed: of single connections, of members, of proxies and of their configuration.

Each does its harm, waits, and mends it again. What it disturbs is noted before it begins.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tests.consistency.fleet import MEMBERS, PROXIES, Fleet, Member
from tests.consistency.informers import Informer
from tests.consistency.records import RELOADED, Disturbance, Disturbances
from tests.consistency.relay import FOREVER, Connection, Relay, Way
from tests.consistency.versions import Layout


@dataclass
class Scene:
    """What a fault works on. `chance` is its own, so that what it draws does not depend on what others did."""

    fleet: Fleet
    informers: Sequence[Informer]
    disturbances: Disturbances
    layouts: list[Layout]
    chance: random.Random
    over: threading.Event
    """Set at the end: what is still broken then is mended."""
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def wait(self, least: float, most: float) -> None:
        self.over.wait(self.chance.uniform(least, most))

    def member(self) -> Member:
        member = self.fleet.members[self.chance.choice(MEMBERS)]
        self.note(member.name)
        return member

    @contextmanager
    def disturbing(
        self,
        what: str,
        members: Sequence[str] = (),
        proxies: Sequence[str] = (),
        *,
        forgets: bool = False,
        removes: str = "",
    ) -> Iterator[None]:
        """Note a disturbance from now until the end of the block."""
        begun = time.monotonic()
        each = self.disturbances.each
        lasting = Disturbance(what, begun, FOREVER, frozenset(members), frozenset(proxies), forgets, removes)
        each.append(lasting)
        try:
            yield
            self.fleet.wait_for_tunnels()
        finally:
            each[each.index(lasting)] = replace(lasting, until=time.monotonic())


Fault = Callable[[Scene], None]
UNDONE = 20
"""Revisions, at least, that a restored backup undoes."""

# -- connections ------------------------------------------------------------------------------------------------------


@contextmanager
def _link(scene: Scene, what: str) -> Iterator[Relay]:
    proxy, member = scene.chance.choice(PROXIES), scene.fleet.members[scene.chance.choice(MEMBERS)]
    scene.note(f"{proxy} to {member.name} ({member.protocol})")
    with scene.disturbing(what, [member.name], [proxy]):
        yield member.relays[proxy]


def _on_one(scene: Scene, relay: Relay, what: Callable[[Connection], None]) -> None:
    """Do something to one connection: one on which a watch goes on, more often than not."""
    only_streams, place = scene.chance.random() < 0.8, scene.chance.random()

    def act(found: list[Connection]) -> str:
        streams = [one for one in found if one.streams]
        chosen = streams if only_streams and streams else found
        if not chosen:
            return "none was open"
        connection = chosen[int(place * len(chosen))]
        what(connection)
        return str(connection)

    scene.note(relay.act(act))


def _each(what: Callable[[Connection], None], found: Sequence[Connection]) -> None:
    for one in found:
        what(one)


def _reset(found: Sequence[Connection]) -> None:
    _each(Connection.reset, found)


def _hold(found: Sequence[Connection]) -> None:
    _each(lambda one: one.hold(FOREVER), found)


def _thaw(found: Sequence[Connection]) -> None:
    _each(Connection.thaw, found)


def _ways(scene: Scene) -> tuple[Way, ...]:
    drawn: tuple[Way, ...] = scene.chance.choice((("down",), ("down",), ("up",), ("up", "down")))
    scene.note(" and ".join(drawn))
    return drawn


def connection_held(scene: Scene) -> None:
    """The bytes of one connection wait for some time and then come."""
    with _link(scene, "connection_held") as relay:
        seconds, ways = scene.chance.choice((0.4, 1.0, 1.5, 3.0)), _ways(scene)
        scene.note(f"{seconds} s")
        _on_one(scene, relay, lambda connection: connection.hold(seconds, ways))
        scene.over.wait(seconds)


def streams_held(scene: Scene) -> None:
    """All watches of a link wait, and nothing else does (but over HTTP/2 what is on their connections)."""
    with _link(scene, "streams_held") as relay:
        seconds = scene.chance.choice((0.4, 1.0, 2.0, 4.0))
        scene.note(f"{seconds} s")

        def act(found: list[Connection]) -> int:
            streams = [one for one in found if one.streams]
            for one in streams:
                one.hold(seconds, ("down",))
            return len(streams)

        scene.note(f"{relay.act(act)} connections")
        scene.over.wait(seconds)


def connection_frozen(scene: Scene) -> None:
    """One connection is silent, for longer than anything waits."""
    with _link(scene, "connection_frozen") as relay:
        ways = _ways(scene)
        frozen: list[Connection] = []

        def freeze(connection: Connection) -> None:
            connection.hold(FOREVER, ways)
            frozen.append(connection)

        _on_one(scene, relay, freeze)
        scene.wait(3.0, 8.0)
        if scene.chance.random() < 0.5:
            scene.note("then reset")
            relay.act(lambda _: _reset(frozen))
        else:
            relay.act(lambda _: _thaw(frozen))


def connection_drips(scene: Scene) -> None:
    """The bytes of one connection come slowly."""
    with _link(scene, "connection_drips") as relay:
        count, pause = scene.chance.choice(((1, 0.002), (20, 0.02), (300, 0.1)))
        slow: list[Connection] = []

        def drip(connection: Connection) -> None:
            connection.drip(count, pause, ("down",))
            slow.append(connection)

        _on_one(scene, relay, drip)
        scene.wait(1.0, 5.0)
        relay.act(lambda _: _thaw(slow))


def connection_reset(scene: Scene) -> None:
    """One connection is reset."""
    with _link(scene, "connection_reset") as relay:
        _on_one(scene, relay, lambda connection: connection.reset())


def connection_half_closed(scene: Scene) -> None:
    """One direction of a connection ends."""
    with _link(scene, "connection_half_closed") as relay:
        way: Way = scene.chance.choice(("down", "down", "up"))
        scene.note(way)
        _on_one(scene, relay, lambda connection: connection.half_close(way))
        scene.wait(0.5, 3.0)
        relay.heal()


def link_late(scene: Scene) -> None:
    """All that comes over a link is late, on connections of different age by different times."""
    with _link(scene, "link_late") as relay:
        delays = [scene.chance.choice((0.0, 0.05, 0.3, 0.9)) for _ in range(8)]

        def late(connection: Connection) -> None:
            connection.delay(delays[connection.number % len(delays)], ("down",))

        relay.opening = late
        relay.act(lambda found: _each(late, found))
        scene.wait(2.0, 5.0)
        relay.heal()


def link_down(scene: Scene) -> None:
    """A link is broken: connections are reset, new ones too."""
    with _link(scene, "link_down") as relay:
        relay.refusing = True
        relay.act(_reset)
        scene.wait(0.5, 5.0)
        relay.heal()


def link_black(scene: Scene) -> None:
    """Nothing comes over a link, and nothing says so."""
    with _link(scene, "link_black") as relay:
        relay.opening = lambda connection: connection.hold(FOREVER)
        relay.act(_hold)
        scene.wait(1.0, 6.0)
        if scene.chance.random() < 0.5:
            scene.note("then reset")
            relay.act(_reset)
        relay.heal()


def informers_disconnected(scene: Scene) -> None:
    """Informers lose their connections, and go to another replica."""
    with scene.disturbing("informers_disconnected"):
        for informer in scene.informers:
            if scene.chance.random() < 0.7:
                informer.disconnect()
        scene.wait(0.1, 0.5)


# -- members ----------------------------------------------------------------------------------------------------------


def member_compacts(scene: Scene) -> None:
    """A member forgets its past; mostly after a time in which nobody followed it."""
    member = scene.member()
    with scene.disturbing("member_compacts", [member.name], forgets=True):
        if scene.chance.random() < 0.7:
            for relay in member.relays.values():
                relay.refusing = True
                relay.act(_reset)
            scene.wait(0.5, 2.0)
        member.control.compact()
        for relay in member.relays.values():
            relay.heal()


def member_hangs(scene: Scene) -> None:
    """A member accepts connections and answers nothing."""
    member = scene.member()
    with scene.disturbing("member_hangs", [member.name]):
        member.control.hang_endpoint()
        scene.wait(0.5, 4.0)
        member.control.resume_endpoint()


def member_stops(scene: Scene) -> None:
    """A member refuses connections."""
    member = scene.member()
    with scene.disturbing("member_stops", [member.name]):
        member.control.stop_endpoint()
        scene.wait(0.5, 4.0)
        member.control.start_endpoint()


def member_stands_still(scene: Scene) -> None:
    """The process of a member gets no processor (SIGSTOP)."""
    member = scene.member()
    with scene.disturbing("member_stands_still", [member.name]):
        os.kill(member.process.pid, signal.SIGSTOP)
        try:
            scene.wait(0.5, 4.0)
        finally:
            os.kill(member.process.pid, signal.SIGCONT)


def member_killed(scene: Scene) -> None:
    """A member is killed, and started with its data."""
    member = scene.member()
    with scene.disturbing("member_killed", [member.name], forgets=True):
        member.process.kill()
        scene.wait(0.0, 2.0)
        member.spawn()
        member.wait_ready()


def _far_beyond(fleet: Fleet, member: Member, revision: int) -> bool:
    """Whether a member and what both proxies have of it are beyond a revision.

    A member that is soon beyond where a proxy stood, before that looks, is to it like one that was never restored.
    """
    return member.revision >= revision and all(
        fleet.part(proxy, member) >= revision for proxy in fleet.proxies.values()
    )


def member_restored(scene: Scene) -> None:
    """A member goes back to a backup, while nobody follows it or under their eyes."""
    member = scene.member()
    backup = member.control.snapshot()
    before, until = member.revision, time.monotonic() + 12.0
    while not _far_beyond(scene.fleet, member, before + UNDONE):
        if scene.over.wait(0.3) or time.monotonic() > until:
            scene.note("not all are far beyond the backup")
            return
    with scene.disturbing("member_restored", [member.name], forgets=True):
        unseen = scene.chance.random() < 0.7
        scene.note("unseen" if unseen else "seen")
        member.quiet = True
        if unseen:
            for relay in member.relays.values():
                relay.refusing = True
                relay.act(_reset)
            scene.wait(0.5, 2.0)
        member.control.restore(backup)
        if unseen:
            scene.wait(0.0, 3.0)
        for relay in member.relays.values():
            relay.heal()
        scene.fleet.wait_for_tunnels()
        scene.wait(3.0, 3.0)
        member.quiet = False


# -- proxies ----------------------------------------------------------------------------------------------------------


def reload_same(scene: Scene) -> None:
    """A reload that changes nothing."""
    with scene.disturbing("proxies_reloaded"):
        scene.fleet.reload(scene.fleet.layout)


def reload_order(scene: Scene) -> None:
    """The members stand in another order: another layout of the versions."""
    _reload(scene, tuple(scene.chance.sample(MEMBERS, len(MEMBERS))))


def reload_without(scene: Scene) -> None:
    """A member is taken out, and put back."""
    name = scene.chance.choice(MEMBERS)
    _reload(scene, tuple(one for one in MEMBERS if one != name), name)


def reload_former(scene: Scene) -> None:
    """A member becomes a former one, which keeps its place in the versions, and a member again."""
    name = scene.chance.choice(MEMBERS)
    scene.note(name)
    _reload(scene, MEMBERS, name, [name])


def _reload(scene: Scene, layout: Layout, without: str = "", former: Sequence[str] = ()) -> None:
    scene.note(", ".join(layout))
    with scene.disturbing(RELOADED, forgets=True, removes=without):
        scene.layouts.append(layout)
        scene.fleet.reload(layout, former)
        scene.wait(2.0, 5.0)
        scene.layouts.append(MEMBERS)
        scene.fleet.reload(MEMBERS)


def proxy_killed(scene: Scene) -> None:
    """A proxy is killed, and started with what it had saved."""
    _restart(scene, kill=True)


def proxy_ended(scene: Scene) -> None:
    """A proxy is ended as systemd ends it, and started."""
    _restart(scene, kill=False)


def _restart(scene: Scene, *, kill: bool) -> None:
    proxy = scene.fleet.proxies[scene.chance.choice(PROXIES)]
    scene.note(proxy.name)
    what = "proxy_killed" if kill else "proxy_ended"
    # What the other one has said may be beyond what this one still knows of the past: of versions both.
    with scene.disturbing(what, (), [proxy.name]), scene.disturbing(f"{what}, of versions", [""], [""], forgets=True):
        scene.fleet.restart(proxy, kill=kill)


OF_CONNECTIONS: dict[str, Fault] = {
    "connection_held": connection_held,
    "streams_held": streams_held,
    "connection_frozen": connection_frozen,
    "connection_drips": connection_drips,
    "connection_reset": connection_reset,
    "connection_half_closed": connection_half_closed,
    "link_late": link_late,
    "link_down": link_down,
    "link_black": link_black,
    "informers_disconnected": informers_disconnected,
}
OF_PROCESSES: dict[str, Fault] = {
    "member_compacts": member_compacts,
    "member_hangs": member_hangs,
    "member_stops": member_stops,
    "member_stands_still": member_stands_still,
    "member_killed": member_killed,
    "member_restored": member_restored,
    "reload_same": reload_same,
    "reload_order": reload_order,
    "reload_without": reload_without,
    "reload_former": reload_former,
    "proxy_killed": proxy_killed,
    "proxy_ended": proxy_ended,
}
FAULTS = OF_CONNECTIONS | OF_PROCESSES


def drawn(seed: str, names: Sequence[str]) -> Iterator[tuple[str, random.Random]]:
    """Yield faults without end: each once, in an order by chance, and again; each with a chance of its own."""
    chance, number = random.Random(seed), 0
    while names:
        for name in chance.sample(names, len(names)):
            number += 1
            yield name, random.Random(f"{seed} {number}")
