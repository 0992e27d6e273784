"""The objects of one store at one version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from mcproxy.aggregate.cache.object import CachedObject
from mcproxy.aggregate.cache.sequence import ObjectSequence

StoreT = TypeVar("StoreT")
_BEHIND_SLASH = "0"  # the character after the slash: "ns0" is where the keys that begin with "ns/" end


class Snapshot(Generic[StoreT]):
    """An immutable state of a store, in the order in which a kube-apiserver lists; costs nothing to take or to keep but
    the objects that have changed since.
    """

    __slots__ = ("_objects", "store", "version")

    def __init__(self, store: StoreT, version: int, objects: ObjectSequence) -> None:
        self.store = store
        self.version = version
        self._objects = objects

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[CachedObject]:
        return iter(self._objects)

    @property
    def objects(self) -> ObjectSequence:
        """The objects, with access by chunk."""
        return self._objects

    def get(self, namespace: str, name: str) -> CachedObject | None:
        """Return one object; `namespace` is "" for those of a cluster-wide resource."""
        return self._objects.get(f"{namespace}/{name}")

    def range(self, namespace: str = "") -> Iterator[CachedObject]:
        """Iterate over the objects of a namespace; "" is all."""
        if not namespace:
            return iter(self._objects)
        return self._objects.between(f"{namespace}/", namespace + _BEHIND_SLASH)

    def count(self, namespace: str = "") -> int:
        """Return how many objects a namespace has; "" is all."""
        if not namespace:
            return len(self._objects)
        return self._objects.rank(namespace + _BEHIND_SLASH) - self._objects.rank(f"{namespace}/")

    def after(self, namespace: str, name: str, within_namespace: str = "") -> Iterator[CachedObject]:
        """Iterate over the objects behind one of that name, which need not be there any more."""
        end = within_namespace + _BEHIND_SLASH if within_namespace else None
        start = max(f"{namespace}/{name}\0", f"{within_namespace}/" if within_namespace else "")
        return self._objects.between(start, end)

    def count_after(self, namespace: str, name: str, within_namespace: str = "") -> int:
        """Return how many objects `after` yields."""
        objects = self._objects
        start = max(f"{namespace}/{name}\0", f"{within_namespace}/" if within_namespace else "")
        end = objects.rank(within_namespace + _BEHIND_SLASH) if within_namespace else len(objects)
        return max(0, end - objects.rank(start))
