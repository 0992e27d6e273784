"""Waiting for the daemon that had the control socket before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.protocol import Factory, Protocol

from mcproxy.daemon.control.control_socket import ControlSocketInUse
from mcproxy.daemon.control.daemon_control_socket import status_of, wait_for_predecessor

STOPPING = json.dumps({"ok": True, "state": "stopping", "stopsWithin": 20.0, "pid": 7}).encode() + b"\n"
HANGS_UP = b""


class Predecessor(Factory):
    """A daemon on a control socket that answers each query with the next of `answers` and ends with the last one."""

    def __init__(self, reactor: Any, path: Path, answers: list[bytes], *, ends: bool = True) -> None:
        self.answers = answers
        self.ends = ends
        self.queries = 0
        self.port = reactor.listenUNIX(str(path), self)

    def buildProtocol(self, addr: Any) -> Protocol:
        return _Answer(self)

    def answer(self) -> bytes:
        self.queries += 1
        answer = self.answers[min(self.queries, len(self.answers)) - 1]
        if self.ends and self.queries == len(self.answers):
            self.port.stopListening()
        return answer


class _Answer(Protocol):
    def __init__(self, predecessor: Predecessor) -> None:
        self._predecessor = predecessor

    def dataReceived(self, data: bytes) -> None:
        assert self.transport is not None
        if answer := self._predecessor.answer():
            self.transport.write(answer)
        else:
            self.transport.loseConnection()


@pytest.fixture
def reactor() -> Any:
    from twisted.internet import reactor

    return reactor


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


async def test_one_that_ends_while_it_is_asked_has_ended(reactor: Any, path: Path) -> None:
    predecessor = Predecessor(reactor, path, [STOPPING, STOPPING, HANGS_UP])
    await wait_for_predecessor(reactor, str(path))
    assert predecessor.queries == 3


async def test_one_that_ends_at_the_first_query_has_ended(reactor: Any, path: Path) -> None:
    predecessor = Predecessor(reactor, path, [HANGS_UP])
    await wait_for_predecessor(reactor, str(path))
    assert predecessor.queries == 1


@pytest.mark.parametrize("answers", [[HANGS_UP], [STOPPING, HANGS_UP], [b'{"state": "serving", "pid": 7}\n']])
async def test_a_process_that_goes_on_to_listen_has_the_socket(reactor: Any, path: Path, answers: list[bytes]) -> None:
    predecessor = Predecessor(reactor, path, answers, ends=False)
    with pytest.raises(ControlSocketInUse):
        await wait_for_predecessor(reactor, str(path))
    await predecessor.port.stopListening()


async def test_a_process_of_another_user_at_the_path_is_not_believed(reactor: Any, path: Path) -> None:
    predecessor = Predecessor(reactor, path, [b'{"state": "serving", "pid": 7}\n'], ends=False)
    assert await status_of(reactor, str(path), lambda _: 4711) == {}
    assert predecessor.queries == 0
    assert await status_of(reactor, str(path)) == {"state": "serving", "pid": 7}
    await predecessor.port.stopListening()
