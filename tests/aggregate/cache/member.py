"""A member's true history, for model tests of what is cached of it."""

from __future__ import annotations

from mcproxy.aggregate.cache.cached_object import CachedObject, Event, EventType
from mcproxy.aggregate.cache.sequence import Snapshot
from mcproxy.aggregate.cache.store import Store
from tests.aggregate.cache.objects import cached

State = dict[str, tuple[str, int]]  # name: uid and version


class Member:
    """A cluster: its objects now, at every version before, and the events between."""

    def __init__(self) -> None:
        self.version = 1
        self.objects: dict[str, CachedObject] = {}
        self.states: dict[int, State] = {1: {}}
        self.events: list[tuple[EventType, CachedObject]] = []

    def write(self, name: str, delete: bool) -> None:
        known = self.objects.get(name)
        if delete and known is None:
            return
        self.version += 1
        if delete:
            assert known is not None
            self.events.append((EventType.DELETED, cached(name, self.version, uid=known.uid)))
            del self.objects[name]
        else:
            uid = known.uid if known else f"uid-{self.version}"
            event_type = EventType.MODIFIED if known else EventType.ADDED
            self.objects[name] = cached(name, self.version, uid=uid)
            self.events.append((event_type, self.objects[name]))
        self.states[self.version] = self.state()

    def pass_version(self) -> None:
        """Something else in the cluster was written."""
        self.version += 1
        self.states[self.version] = self.state()

    def state(self) -> State:
        return {name: (item.uid, item.version) for name, item in self.objects.items()}


def state_of(snapshot: Snapshot[Store]) -> State:
    return {item.name: (item.uid, item.version) for item in snapshot}


def followed(state: State, event: Event) -> State:
    """Return the state of an informer after one event."""
    state = dict(state)
    if event.type is EventType.DELETED:
        state.pop(event.object.name, None)
    else:
        state[event.object.name] = (event.object.uid, event.object.version)
    return state
