"""One of several processes that share limits: `python -m tests.dispatch.tables.child COLUMN WHAT ...`.

The descriptors of the memory are in the environment. What it was told to do it says on its standard output when it is
done; a time on its standard input is when to begin, where that matters.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Any

from twisted.internet import reactor as installed
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from mcproxy.config.model import FlowControl, FlowControlType, Per, Queue
from mcproxy.dispatch.flow_control_set import FlowControls
from mcproxy.dispatch.limit_tables import LimitTables
from mcproxy.dispatch.tables import layout
from mcproxy.dispatch.tables.limit_shares import LimitId
from tests.dispatch.permits import deferred

reactor: Any = installed
BUCKET = LimitId("bulk", "bucket", Per.USER)
COUNT = LimitId("interactive", "short", Per.USER)
KEYS = ("alice", "bob", "carol")


class NoReactor:
    """The part of a reactor that tables use, for who is never told anything."""

    def addReader(self, reader: Any) -> None: ...


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def take_tokens(tables: LimitTables, qps: str, burst: str, seconds: str) -> None:
    """Take as many as there are, until some came after there was none; say when each was taken, and each refusal."""
    buckets = tables.buckets(BUCKET, float(qps), int(burst))
    say("ready")
    until = float(sys.stdin.readline()) + float(seconds)
    taken: list[float] = []
    refused: list[float] = []
    while (now := time.monotonic()) < until or not refused or not taken or taken[-1] < refused[0]:
        (taken if buckets.take("alice", now) else refused).append(now)
    say((taken, refused))


def take_and_release(tables: LimitTables, maximum: str, seconds: str) -> None:
    """Take and release; say from when to when each was held at least."""
    counts = tables.counts(COUNT, int(maximum))
    random = Random(os.getpid())
    say("ready")
    until = float(sys.stdin.readline()) + float(seconds)
    held: list[float] = []
    spans = []
    while time.monotonic() < until:
        if random.random() < 0.55:
            if counts.take("alice"):
                held.append(time.monotonic())
        elif held:
            spans.append((held.pop(random.randrange(len(held))), time.monotonic()))
            counts.release("alice")
    for start in held:
        spans.append((start, time.monotonic()))
        counts.release("alice")
    say(spans)


def hold(tables: LimitTables, maximum: str, number: str) -> None:
    """Take, and have it for ever."""
    counts = tables.counts(COUNT, int(maximum))
    say(sum(counts.take("alice") for _ in range(int(number))))
    time.sleep(3600)


def stay_inside(tables: LimitTables, maximum: str, seconds: str) -> None:
    """Be in the critical section in the middle of a change of another process's words; 0 seconds: until told."""
    counts = tables.counts(COUNT, int(maximum))
    counts.take("alice")
    place = counts._find("alice")
    memory = tables.memory
    memory.mutexes.lock(place.mutex)
    total, theirs = place.base + layout.C_TOTAL, place.base + layout.C_COLUMNS
    done = memory.undo_log(place.region, place.base + layout.C_RESERVED, total, theirs)
    memory.words[place.base + layout.C_RESERVED] = 1
    memory.words[total] += 7
    memory.words[theirs] += 7
    say("inside")
    if float(seconds):
        time.sleep(float(seconds))
    else:
        sys.stdin.readline()
    memory.words[theirs] -= 7
    memory.words[total] -= 7
    memory.words[place.base + layout.C_RESERVED] = 0
    memory.words[done] = 0
    memory.mutexes.release(place.mutex)
    say("outside")
    time.sleep(3600)


def churn(tables: LimitTables, maximum: str) -> None:
    """Do everything with counts and buckets, until killed."""
    counts = tables.counts(COUNT, int(maximum))
    buckets = tables.buckets(BUCKET, 1e6, 5)
    random = Random(os.getpid())
    held: list[str] = []
    say("ready")
    while True:
        key = random.choice(KEYS)
        choice = random.random()
        if choice < 0.4:
            held += [key] * counts.take(key)
        elif choice < 0.6:
            held += [key] * counts.take_in_turn(key)
        elif choice < 0.65:
            counts.leave(key)
        elif choice < 0.7:
            buckets.take_in_turn(key, time.monotonic())
            buckets.leave(key)
        elif held:
            counts.release(held.pop(random.randrange(len(held))))


def queue_up(tables: LimitTables, maximum: str, loops: str) -> None:
    """Let so many clients ask again and again, each for 5 ms, until another line comes: a number.

    Say when each asked, and how long it waited, once so many more of them have had their turn.
    """
    control = FlowControl(
        name="queued",
        type=FlowControlType.MAX_REQUESTS_INFLIGHT,
        max=int(maximum),
        queue=Queue(size=100, timeout=30.0),
    )
    flows = FlowControls.build([control], reactor, tables=tables)
    flows.activate()
    limits = flows.limits_for(["queued"], "east")
    waits: list[tuple[float, float]] = []

    async def client() -> None:
        while True:
            asked = time.monotonic()
            permit = await deferred(limits, "alice", False)
            waits.append((asked, time.monotonic() - asked))
            await deferLater(reactor, 0.005)
            permit.release()

    def end(line: str) -> None:
        enough = len(waits) + int(line)

        def look() -> None:
            if len(waits) < enough:
                reactor.callLater(0.005, look)
                return
            say(waits)
            reactor.stop()

        look()

    def begin() -> None:
        say("ready")
        wait = max(0.0, float(sys.stdin.readline()) - time.monotonic())  # the moment may have passed already
        for _ in range(int(loops)):
            reactor.callLater(wait, Deferred.fromCoroutine, client())
        deferToThread(sys.stdin.readline).addCallback(end)

    reactor.callWhenRunning(begin)
    reactor.run()


def main() -> None:
    column, what, *arguments = sys.argv[1:]
    descriptors = json.loads(os.environ["DESCRIPTORS"])
    tables = LimitTables.of_process(descriptors, int(column), reactor if what == "queue_up" else NoReactor())
    tasks: dict[str, Callable[..., None]] = {
        "take_tokens": take_tokens,
        "take_and_release": take_and_release,
        "hold": hold,
        "stay_inside": stay_inside,
        "churn": churn,
        "queue_up": queue_up,
    }
    tasks[what](tables, *arguments)


if __name__ == "__main__":
    main()
