"""The keys of objects that a member serves and that cannot be parsed: no answer may say that they do not exist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MAX_KEYS = 10_000


class UnreadableObjects:
    """Keys (`namespace/name`) of objects; at most MAX_KEYS, then only that there are more.

    `overflown`: there have been more, so of no object that is not known it is certain that it does not exist.
    """

    __slots__ = ("_keys", "_namespaces", "overflown")

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys: set[str] = set()
        self._namespaces: dict[str, int] = {}
        self.overflown = False
        for key in keys:
            self.add(key)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._keys))

    def __bool__(self) -> bool:
        return bool(self._keys) or self.overflown

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def may_have(self, namespace: str, name: str) -> bool:
        """Whether an object of that name is unreadable, or may be; `namespace` "" is any, or that of no namespace."""
        if self.overflown or f"{namespace}/{name}" in self._keys:
            return True
        return not namespace and any(key.endswith(f"/{name}") for key in self._keys)

    def add(self, key: str) -> None:
        """Note an object."""
        if key in self._keys:
            return
        if len(self._keys) >= MAX_KEYS:
            self.overflown = True
            return
        self._keys.add(key)
        namespace = key.partition("/")[0]
        self._namespaces[namespace] = self._namespaces.get(namespace, 0) + 1

    def discard(self, key: str) -> None:
        """Forget an object: it is gone, or can be read again."""
        if key in self._keys:
            self._keys.discard(key)
            namespace = key.partition("/")[0]
            self._namespaces[namespace] -= 1
            if not self._namespaces[namespace]:
                del self._namespaces[namespace]

    def count(self, namespace: str) -> int:
        """Return how many there are in a namespace, "" for all of them."""
        return len(self._keys) if not namespace else self._namespaces.get(namespace, 0)
