"""The objects of an API server: one sequence of versions, lists, merge patches, and watches that resume."""

from __future__ import annotations

import asyncio
import copy
import itertools
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

JSONDict = dict[str, Any]
Key = tuple[str, str, str]
"""Resource, namespace, name."""


class Objects:
    """All objects by key, and all that has changed."""

    def __init__(self) -> None:
        self.now: dict[Key, JSONDict] = {}
        self._log: list[tuple[int, str, Key, JSONDict]] = []
        self._versions = itertools.count(1000)
        self.version = next(self._versions)
        self._changed = asyncio.Condition()

    def list(self, resource: str, namespace: str) -> list[JSONDict]:
        """Return the objects of a resource, of a namespace or of all ("")."""
        return [
            found
            for (known, where, _), found in sorted(self.now.items())
            if known == resource and namespace in ("", where)
        ]

    async def put(self, key: Key, found: JSONDict) -> JSONDict:
        """Keep an object, and return it as it is kept."""
        before = self.now.get(key)
        meta = dict(found.get("metadata") or {})
        old: JSONDict = (before or {}).get("metadata") or {}
        self.version = next(self._versions)
        meta.setdefault("uid", old.get("uid") or str(uuid.uuid4()))
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        meta["creationTimestamp"] = old.get("creationTimestamp") or stamp
        meta["resourceVersion"] = str(self.version)
        kept = {**found, "metadata": meta}
        self.now[key] = kept
        await self._tell("ADDED" if before is None else "MODIFIED", key, kept)
        return kept

    async def delete(self, key: Key) -> JSONDict:
        """Remove an object that is there."""
        gone = copy.deepcopy(self.now.pop(key))
        self.version = next(self._versions)
        gone["metadata"]["resourceVersion"] = str(self.version)
        await self._tell("DELETED", key, gone)
        return gone

    async def _tell(self, kind: str, key: Key, found: JSONDict) -> None:
        self._log.append((self.version, kind, key, copy.deepcopy(found)))
        async with self._changed:
            self._changed.notify_all()

    async def changes(self, resource: str, namespace: str, after: int) -> AsyncIterator[tuple[str, JSONDict]]:
        """Yield what changes after a version, for ever."""
        place = 0
        while True:
            while place < len(self._log):
                version, kind, key, found = self._log[place]
                place += 1
                if version > after and key[0] == resource and namespace in ("", key[1]):
                    yield kind, found
            async with self._changed:
                while place == len(self._log):
                    await self._changed.wait()


def merged(target: Any, patch: Any) -> Any:
    """Return the result of a merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result
