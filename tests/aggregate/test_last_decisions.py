"""The last decisions: whose they are, how long they hold, their bounds, and their file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcproxy.aggregate import last_decisions, state_file
from mcproxy.aggregate.last_decisions import LastDecisions
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.kube.user import UserInfo
from tests.support.clock import Clock
from tests.support.logged import captured_logs

ALICE = UserInfo("alice", ("dev", "system:authenticated"))
LIST_PODS = Attributes("list", version="v1", resource="pods", namespace="demo")


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.advance(1_000_000)
    return clock


def test_a_decision_holds_for_the_same_member_user_and_attributes_only(clock: Clock) -> None:
    table = LastDecisions(clock.seconds)
    table.record("east", "u1", ALICE, LIST_PODS, allowed=True)
    assert table.find("east", "u1", ALICE, LIST_PODS, 60) is True
    assert table.find("west", "u1", ALICE, LIST_PODS, 60) is None
    assert table.find("east", "u1", UserInfo("alice", ("dev",)), LIST_PODS, 60) is None
    assert table.find("east", "u1", UserInfo("alice", ALICE.groups, extra=(("k", ("v",)),)), LIST_PODS, 60) is None
    for other in (
        LIST_PODS._replace(verb="watch"),
        LIST_PODS._replace(namespace=""),
        LIST_PODS._replace(resource="secrets"),
        LIST_PODS._replace(name="a"),
        LIST_PODS._replace(label_selector="a=b"),
    ):
        assert table.find("east", "u1", ALICE, other, 60) is None


def test_the_latest_decision_counts(clock: Clock) -> None:
    table = LastDecisions(clock.seconds)
    table.record("east", "u1", ALICE, LIST_PODS, allowed=True)
    table.record("east", "u1", ALICE, LIST_PODS, allowed=False)
    assert table.find("east", "u1", ALICE, LIST_PODS, 60) is False
    assert len(table) == 1


def test_a_decision_of_another_cluster_under_the_same_name_does_not_count(clock: Clock) -> None:
    table = LastDecisions(clock.seconds)
    table.record("east", "u1", ALICE, LIST_PODS, allowed=True)
    assert table.find("east", "u2", ALICE, LIST_PODS, 60) is None
    assert table.find("east", "", ALICE, LIST_PODS, 60) is True  # not known yet: after a restart, while it is away


def test_a_decision_ends_by_its_age_whatever_the_clock_does(clock: Clock) -> None:
    table = LastDecisions(clock.seconds)
    table.record("east", "u1", ALICE, LIST_PODS, allowed=True)
    clock.advance(60)
    assert table.find("east", "u1", ALICE, LIST_PODS, 60) is True
    clock.advance(1)
    assert table.find("east", "u1", ALICE, LIST_PODS, 60) is None
    clock.rightNow -= 500
    assert table.find("east", "u1", ALICE, LIST_PODS, 60) is None


def test_who_asks_with_ever_new_selectors_displaces_only_their_own(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_decisions, "_MAX_PER_USER", 10)
    monkeypatch.setattr(last_decisions, "_MAX_DECISIONS", 15)
    table = LastDecisions(clock.seconds)
    table.record("east", "u1", ALICE, LIST_PODS, allowed=True)
    for number in range(1000):
        wanted = LIST_PODS._replace(label_selector=str(number))
        table.record("east", "u1", UserInfo("mallory"), wanted, allowed=False)
    assert table.find("east", "u1", ALICE, LIST_PODS, 60) is True
    assert len(table) == 11
    for number in range(100):
        table.record("east", "u1", UserInfo(str(number)), LIST_PODS, allowed=False)
    assert len(table) == 15


def test_the_table_survives_in_its_file_without_names(clock: Clock, tmp_path: Path) -> None:
    table = LastDecisions(clock.seconds)
    table.record("east", "u1", ALICE, LIST_PODS._replace(verb="watch"), allowed=True)
    clock.advance(100)
    table.record("east", "u1", ALICE, LIST_PODS, allowed=True)
    assert table.changed
    table.writer(tmp_path / "decisions", 60)()
    assert not bool(table.changed)
    assert b"alice" not in (tmp_path / "decisions").read_bytes()
    again = LastDecisions(clock.seconds)
    again.load(tmp_path / "decisions")
    assert len(again) == 1  # the older one was not worth saving
    assert again.find("east", "u1", ALICE, LIST_PODS, 60) is True
    assert again.find("east", "u2", ALICE, LIST_PODS, 60) is None


def test_a_file_with_another_form_is_put_aside(clock: Clock, tmp_path: Path) -> None:
    state_file.write(tmp_path / "decisions", "decisions", 1, b"\x91\x01")
    table = LastDecisions(clock.seconds)
    with captured_logs() as events:
        table.load(tmp_path / "decisions")
    assert len(table) == 0
    assert len(events) == 1
    assert (tmp_path / "decisions.broken").exists()
