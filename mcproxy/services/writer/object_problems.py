"""Why single objects are not written, by the service that they are of. Bounded; pure."""

from __future__ import annotations

from collections.abc import Collection, ItemsView, KeysView

from mcproxy.services.exports.object_keys import ObjectKey, ServiceKey


class ObjectProblems:
    """One line for each object that has one."""

    def __init__(self, most: int) -> None:
        """`most`: how many objects have one; of further ones nothing is kept."""
        self._most = most
        self._notes: dict[ObjectKey, str] = {}
        self._services: dict[ServiceKey, set[ObjectKey]] = {}
        self._owners: dict[ObjectKey, ServiceKey] = {}

    def __len__(self) -> int:
        return len(self._notes)

    def items(self) -> ItemsView[ObjectKey, str]:
        """Return the objects with their lines, oldest first."""
        return self._notes.items()

    def of(self, place: ObjectKey) -> str:
        """Return the line of an object; "": it has none."""
        return self._notes.get(place, "")

    def services(self) -> KeysView[ServiceKey]:
        """Return the services that have an object with a line."""
        return self._services.keys()

    def note(self, service: ServiceKey, place: ObjectKey, text: str) -> bool:
        """Keep a line for an object; return whether it is one that had none, and has one now."""
        is_new = place not in self._notes
        if is_new and len(self._notes) >= self._most:
            return False
        self.remove(place)
        self._notes[place] = text
        self._owners[place] = service
        self._services.setdefault(service, set()).add(place)
        return is_new

    def remove(self, place: ObjectKey) -> None:
        """Forget the line of an object, if it has one."""
        service = self._owners.pop(place, None)
        if service is None:
            return
        del self._notes[place]
        places = self._services[service]
        places.discard(place)
        if not places:
            del self._services[service]

    def keep(self, service: ServiceKey, places: Collection[ObjectKey]) -> None:
        """Forget the lines of a service's objects that are not among these."""
        for place in self._services.get(service, set()).difference(places):
            self.remove(place)

    def clear(self) -> None:
        """Forget all."""
        self._notes.clear()
        self._services.clear()
        self._owners.clear()
