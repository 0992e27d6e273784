"""The load's own promise: what it sees must not depend on when a request that hung is carried out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.client_load import ClientLoad
from tests.e2e.http_client import Address, Answer

NOWHERE: Any = None


def test_an_object_whose_deletion_failed_is_not_touched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A DELETE that timed out may be carried out between any look at the object and a second DELETE."""
    asked: list[tuple[str, str]] = []

    def ask(self: ClientLoad, client: Any, kind: str, method: str, target: str, *_: Any, **__: Any) -> Answer:
        asked.append((method, target))
        if len([True for method, _ in asked if method == "DELETE"]) == 3:
            self.stop()
        return Answer(504, [], b"") if method == "DELETE" else Answer(200, [], b'{"items": [{}]}')

    monkeypatch.setattr(ClientLoad, "_version", lambda self: "1")
    monkeypatch.setattr(ClientLoad, "_ask", ask)
    load = ClientLoad(Address(0, NOWHERE), readers=0, writers=1, watchers=0)
    load.start()
    load.join_workers()
    deleted = [target for method, target in asked if method == "DELETE"]
    assert len(deleted) == 3
    for target in deleted:
        after = asked[asked.index(("DELETE", target)) + 1 :]
        assert not [each for each in after if target.rpartition("/")[2] in each[1]]
