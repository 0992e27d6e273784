"""One run of the tester: start everything, do faults for some time, mend all, and see that all informers are right."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty

from tests.consistency.checker import Checker
from tests.consistency.client import ClientThread, UpstreamContext
from tests.consistency.faults import FAULTS, OF_CONNECTIONS, OF_PROCESSES, Scene, drawn
from tests.consistency.fleet import KARMADA, MEMBERS, NAMESPACES, NUMBER, PROXIES, Fleet, NotInForce
from tests.consistency.history import Selection
from tests.consistency.informers import Informer
from tests.consistency.readers import Reader
from tests.consistency.records import Disturbances, Ended, Marked, Opened, Record, Seen
from tests.consistency.relay import Relays
from tests.consistency.writers import MemberWriter, ProxyWriter
from tests.e2e.http_client import Address, ask
from tests.soak.invariants import bugs

RIGHT_WITHIN = 10.0
"""Seconds after the last fault within which all informers have what the members have."""
CALM = 3.0
"""Seconds before the first fault: nothing that is refused then is explained."""
LOOK = 0.2
"""Seconds between two looks at what they have, in the time of what they saw."""
LATE = 60.0
"""Seconds that they get to be right at all: what is late is another bug than what is lost."""


@dataclass
class Report:
    """What was found; `wrong` is empty if all is well."""

    seed: int
    wrong: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """One line for each, in the order of their ends."""
    figures: str = ""
    trace: list[str] = field(default_factory=list)
    """What the daemons logged last, and what clients were refused."""


@dataclass
class Options:
    """What a run is. `only`: these faults alone."""

    seconds: float
    seed: int
    only: Sequence[str] = ()
    workers: bool = False
    tunnel: bool = False
    say: Callable[[str], None] = lambda text: None


class Settling:
    """When the informers were right, by the times of what they have seen: those who judge may be late themselves.

    On a busy machine the records of seconds wait for the checker; the informers had them in time.
    """

    def __init__(self, checker: Checker, healed: float) -> None:
        self._checker = checker
        self._healed = healed
        self.behind: dict[str, str] = {"": "nothing was looked at"}
        self.late: dict[str, str] = {}
        """What they lacked last."""
        self.seen = healed
        """Up to when it is known what they have."""
        self._right = healed

    @property
    def taken(self) -> float:
        """Seconds from the last fault, or the last change if that was later, until they were right."""
        last = [change.at for member in self._checker.members.values() for change in member.present.changes[-1:]]
        return max(self._right - max([self._healed, *last]), 0.0)

    def take(self, record: Record) -> None:
        """A record was checked."""
        at = record.at if isinstance(record, Opened | Seen | Marked | Ended) else record.answer.ended
        if at >= self.seen + LOOK:
            self.look(at)

    def look(self, at: float) -> None:
        """See what they lack at a time up to which all was checked."""
        self.seen = max(self.seen, at)
        before, self.behind = self.behind, self._checker.behind()
        if self.behind:
            self.late = self.behind
        elif before:
            self._right = self.seen


class Run:
    """One run in a directory of its own."""

    def __init__(self, directory: Path, options: Options) -> None:
        self._directory = directory
        self._options = options
        self._report = Report(options.seed)
        self._disturbances = Disturbances()
        self._over = threading.Event()
        self._begun = time.monotonic()
        self._slowest = 0.0, "none"
        """The answer that took most seconds: whether a proxy holds requests."""
        self._unsure = ""
        """Why it is not known what the proxies run: nothing is judged any more."""

    def __call__(self) -> Report:
        """Do it all."""
        seed = self._options.seed
        with (
            Relays() as relays,
            Fleet(
                self._directory,
                relays,
                random.Random(f"{seed} fleet"),
                workers=self._options.workers,
                tunnel=self._options.tunnel,
            ) as fleet,
        ):
            histories = {name: member.history for name, member in fleet.members.items()}
            http1 = [member.name for member in fleet.members.values() if member.protocol == "HTTP1"]
            checker = Checker(histories, self._disturbances, http1)
            checker.layouts.append(MEMBERS)
            self._wait_for_all_members(fleet)
            shared = UpstreamContext(fleet)
            informers = _informers(shared, seed)
            clients: list[ClientThread] = [*_writers(shared, seed), *_readers(shared, seed)]
            self._begun = time.monotonic()
            for client in (*informers, *clients):
                client.start()
            try:
                self._disturb(fleet, informers, checker, shared)
                self._settle(fleet, informers, clients, checker, shared)
            finally:
                self._over.set()
                shared.stopping.set()
                shared.ended.set()
                for informer in informers:
                    informer.disconnect()
            self._logs(fleet)
        self._report.wrong += checker.wrong
        counts = ", ".join(f"{count} {name.lower()}" for name, count in sorted(checker.counts.items()))
        changes = sum(len(branch.changes) for member in checker.members.values() for branch in member.branches)
        relists = sum(followed.relists for followed in checker.followed.values())
        self._report.figures = f"{changes} changes; {counts}; informers listed {relists} times{self._report.figures}"
        self._report.figures += f"; the slowest answer took {self._slowest[0]:.1f} s ({self._slowest[1][:200]})"
        return self._report

    def _wait_for_all_members(self, fleet: Fleet) -> None:
        """Wait until both proxies have all members, so that nothing explains that one is missing later."""
        for proxy in fleet.proxies.values():
            for server in (NUMBER, KARMADA):
                self._wait_for_list(proxy.address(server), server)

    @staticmethod
    def _wait_for_list(address: Address, server: str) -> None:
        deadline, headers = time.monotonic() + 60, [("Authorization", "Bearer tester-token")]
        while True:
            answer = ask(address, "/api/v1/configmaps", headers=headers, host=server)
            if answer.status == 200 and not answer.header("Warning"):
                return
            assert time.monotonic() < deadline, (answer.status, answer.headers, answer.body[:500])
            time.sleep(0.1)

    # -- while there are faults ---------------------------------------------------------------------------------

    def _disturb(self, fleet: Fleet, informers: Sequence[Informer], checker: Checker, shared: UpstreamContext) -> None:
        """Do faults, two at a time: one of connections, one of processes."""
        wanted = self._options.only or tuple(FAULTS)
        until = time.monotonic() + self._options.seconds
        lanes = [
            threading.Thread(
                target=self._lane,
                args=(fleet, informers, checker, name, [one for one in group if one in wanted], pause, until),
                daemon=True,
            )
            for name, group, pause in (("connections", OF_CONNECTIONS, 0.5), ("processes", OF_PROCESSES, 2.0))
        ]
        for lane in lanes:
            lane.start()
        while any(lane.is_alive() for lane in lanes):
            if time.monotonic() >= until:
                self._over.set()
            time.sleep(0.3)
            self._check(checker, shared)

    def _lane(
        self,
        fleet: Fleet,
        informers: Sequence[Informer],
        checker: Checker,
        lane: str,
        names: Sequence[str],
        pause: float,
        until: float,
    ) -> None:
        rhythm = random.Random(f"{self._options.seed} {lane} rhythm")
        self._over.wait(CALM)
        for name, chance in drawn(f"{self._options.seed} {lane}", names):
            self._over.wait(rhythm.uniform(0.0, 2 * pause))
            if self._over.is_set() or time.monotonic() >= until:
                return
            scene = Scene(fleet, informers, self._disturbances, checker.layouts, chance, self._over)
            begun = time.monotonic()
            try:
                FAULTS[name](scene)
            except NotInForce as error:
                self._unsure = f"the run ends at {name}, nothing is judged from there on: {error}"
                self._report.wrong.append(self._unsure)
                self._over.set()
            except Exception as error:
                self._report.wrong.append(f"{name}: {type(error).__name__}: {error}")
            line = f"{begun:.3f} to {time.monotonic():.3f} {name}: {', '.join(scene.notes) or 'done'}"
            self._report.faults.append(line)
            self._options.say(line)

    def _check(
        self, checker: Checker, shared: UpstreamContext, after_each: Callable[[Record], object] = lambda record: None
    ) -> None:
        """Check what the clients have seen until now; the histories are read behind it."""
        if self._unsure:
            return
        batch: list[Record] = []
        while True:
            try:
                batch.append(shared.records.get_nowait())
            except Empty:
                break
        checker.read_histories()
        before = len(checker.wrong)
        for record in batch:
            checker.take(record)
            after_each(record)
            answer = getattr(record, "answer", None)
            if answer is not None and answer.ended - answer.begun > self._slowest[0]:
                self._slowest = answer.ended - answer.begun, str(answer)
        for text in checker.wrong[before:]:
            self._options.say(f"WRONG: {text}")
        while shared.wrong:
            checker.say(shared.wrong.popleft())

    # -- afterwards ---------------------------------------------------------------------------------------------

    def _settle(
        self,
        fleet: Fleet,
        informers: Sequence[Informer],
        clients: Sequence[ClientThread],
        checker: Checker,
        shared: UpstreamContext,
    ) -> None:
        """Mend all, end the writers, and wait until all informers are right."""
        if self._unsure:
            return
        for member in fleet.members.values():
            for relay in member.relays.values():
                relay.heal()
        fleet.wait_for_tunnels()
        healed = time.monotonic()
        shared.stopping.set()
        for client in clients:
            client.join(90)
            if client.is_alive():
                checker.say(f"{client.name} hangs")
        self._options.say(f"{healed:.3f} all is mended")
        settling = Settling(checker, healed)
        while settling.behind and settling.seen < healed + LATE:
            time.sleep(0.1)
            looked = time.monotonic()
            self._check(checker, shared, settling.take)
            settling.look(looked)
        for name, text in settling.behind.items():
            checker.say(f"{name} is not right {LATE:.0f} s after the last fault: {text}")
        if not settling.behind and settling.taken > RIGHT_WITHIN:
            text = f"{settling.taken:.1f} s after the last fault: {settling.late}"
            checker.say(f"the informers were right only {text}")
        missing = {informer.name for informer in informers} - checker.followed.keys()
        for name in missing:
            checker.say(f"{name} was never shown anything")
        self._report.figures = f"; right {settling.taken:.1f} s after the last fault"

    def _logs(self, fleet: Fleet) -> None:
        for name, text in fleet.logs().items():
            self._report.wrong += [f"{name}: {line}" for line in bugs(text)][:5]
            lines = [line[:240] for line in text.splitlines() if "level=info" not in line]
            self._report.trace += [f"{name}: {line}" for line in lines[-15:]]


def _informers(shared: UpstreamContext, seed: int) -> list[Informer]:
    blue, green = NAMESPACES
    everything = Selection()
    return [
        Informer(shared, "watch-list", f"{seed} a", everything, watch_list=True),
        Informer(shared, "list", f"{seed} b", everything),
        Informer(shared, "pages", f"{seed} c", Selection(blue), limit=5),
        Informer(shared, "group", f"{seed} d", Selection("", "a"), watch_list=True),
        Informer(shared, "group-pages", f"{seed} e", Selection(green, "b"), limit=3),
        Informer(shared, "name", f"{seed} f", Selection(blue, "", f"{MEMBERS[0]}-1")),
        Informer(shared, "karmada", f"{seed} g", everything, server=KARMADA, watch_list=True),
        Informer(shared, "karmada-list", f"{seed} h", Selection(green), server=KARMADA),
    ]


def _writers(shared: UpstreamContext, seed: int) -> list[ClientThread]:
    at_members = [MemberWriter(shared, f"at-{name}", f"{seed} {name}", name) for name in MEMBERS]
    return [
        *at_members,
        *(ProxyWriter(shared, f"writer-{number}", f"{seed} writer {number}") for number in range(len(PROXIES))),
        ProxyWriter(shared, "writer-karmada", f"{seed} writer k", KARMADA),
    ]


def _readers(shared: UpstreamContext, seed: int) -> list[ClientThread]:
    return [
        Reader(shared, "reader-0", f"{seed} reader 0"),
        Reader(shared, "reader-1", f"{seed} reader 1"),
        Reader(shared, "reader-karmada", f"{seed} reader k", KARMADA),
    ]
