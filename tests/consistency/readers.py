"""Gets and lists at replicas by chance, with every kind of resourceVersion."""

from __future__ import annotations

import time
from typing import Any

from tests.consistency.client import ClientThread, Reply, collection, selectors
from tests.consistency.fleet import NAMESPACES
from tests.consistency.history import Selection
from tests.consistency.records import Asked, Got, Item, Listed, item_of, joined
from tests.consistency.writers import GROUPS

ASKED: tuple[Asked, ...] = ("", "", "0", "NotOlderThan", "Exact")


class Reader(ClientThread):
    """Reads, and keeps what its lists say as versions to ask for later."""

    pause = (0.05, 0.3)

    def turn(self) -> None:
        if self.chance.random() < 0.5:
            self._get()
        else:
            self._list()

    def _wanted(self, query: dict[str, Any]) -> tuple[Asked, str, float]:
        """Draw what resourceVersion to ask for; one that was seen, by anybody at any replica."""
        asked = self.chance.choice(ASKED)
        seen = list(self.shared.versions.get(self.server, ()))
        if asked in ("NotOlderThan", "Exact"):
            if not seen:
                return "", "", 0.0
            version, at = self.chance.choice(seen)
            query |= {"resourceVersion": version, "resourceVersionMatch": asked}
            return asked, version, at
        if asked == "0":
            query["resourceVersion"] = "0"
        return asked, "", 0.0

    def _get(self) -> None:
        member, (namespace, name) = self.shared.any_object(self.chance)
        query: dict[str, Any] = {}
        asked, wanted, at = self._wanted(query)
        query.pop("resourceVersionMatch", None)  # a get has none: what it names is the least
        asked = "NotOlderThan" if asked == "Exact" else asked
        reply = self.ask(self.any_proxy(), "GET", f"{collection(namespace)}/{name}", query)
        if reply.answer.status not in (200, 404):
            self.refused(reply, at)
            return
        item = item_of(reply.json) if reply.answer.status == 200 else None
        self.put(Got(reply.answer, member, (namespace, name), asked, item, wanted))

    def _list(self) -> None:
        selection = Selection(
            self.chance.choice(("", *NAMESPACES)),
            self.chance.choice(("", "", *GROUPS)),
            self.chance.choice(("", "", "")),
        )
        query: dict[str, Any] = dict(selectors(selection))
        asked, wanted, at = self._wanted(query)
        limit = self.chance.choice((0, 0, 3, 7))
        if limit:
            query["limit"] = limit
        pages = self._pages(collection(selection.namespace), query, limit if asked != "0" else 0, at)
        if pages is None:
            return
        items: list[Item] = [item_of(found) for page in pages for found in page.json["items"]]
        versions = [str(page.json["metadata"]["resourceVersion"]) for page in pages]
        answer = joined([page.answer for page in pages])
        self.put(Listed(answer, selection, asked, versions[0], tuple(items), wanted, tuple(versions[1:])))
        self.shared.saw(self.server, versions[0])

    def _pages(self, path: str, query: dict[str, Any], limit: int, version_at: float) -> list[Reply] | None:
        """Return all pages, each from a replica by chance; None if one was refused."""
        pages: list[Reply] = []
        while True:
            reply = self.ask(self.any_proxy(), "GET", path, query)
            if reply.answer.status != 200:
                self.refused(reply, version_at)
                return None
            pages.append(reply)
            found = reply.json
            if limit and len(found["items"]) > limit:
                self.shared.wrong.append(f"{reply.answer}: {len(found['items'])} items")
            token = found["metadata"].get("continue", "")
            if not token:
                return pages
            version_at = time.monotonic()
            kept = {name: value for name, value in query.items() if name.endswith("Selector")}
            query = {**kept, "limit": limit, "continue": token}
            if self.chance.random() < 0.4:
                self.shared.stopping.wait(self.chance.uniform(0.0, 1.5))
