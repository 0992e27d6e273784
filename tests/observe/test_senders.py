"""Who sends most: by what, under which names, and what is told of it."""

from __future__ import annotations

import json

import pytest

from mcproxy.observe.senders import KINDS, LONGEST, NO_RESOURCE, SHOWN, Senders, shortened
from tests.observe.metrics.records import record
from tests.support.clock import Clock


class Processor:
    """The processor time that was used."""

    def __init__(self) -> None:
        self.used = 0.0

    def __call__(self) -> float:
        return self.used


@pytest.fixture
def processor() -> Processor:
    return Processor()


@pytest.fixture
def senders(processor: Processor) -> Senders:
    return Senders(Clock().seconds, processor)


def test_requests_bytes_and_refusals_of_each_kind_of_sender(senders: Senders) -> None:
    jane = record(user="jane", client="10.0.0.1", user_agent="kubectl/v1.34", resource="pods", bytes_in=0, bytes_out=9)
    acting = record(user="jane", impersonated="bob", client="10.0.0.2", resource="", status=403, bytes_in=1)
    senders.count([jane, jane, acting])
    found = senders.figures()
    brief = {kind: [(each["name"], each["requests"], each["refused"]) for each in found[kind]] for kind in KINDS}
    assert brief == {
        "users": [("jane", 2, 0), ("bob", 1, 1)],
        "clients": [("10.0.0.1", 2, 0), ("10.0.0.2", 1, 1)],
        "resources": [("pods", 2, 0), (NO_RESOURCE, 1, 1)],
        "userAgents": [("kubectl/v1.34", 2, 0)],
    }
    assert found["users"][0]["bytes"] == 18
    assert (found["total"]["requests"], found["total"]["refused"]) == (3, 1)


def test_a_conflict_or_a_missing_object_is_no_refusal(senders: Senders) -> None:
    senders.count([record(status=status) for status in (200, 404, 409, 500, 401, 403, 429)])
    assert senders.figures()["total"]["refused"] == 3


def test_processor_time_is_divided_by_requests_and_bytes(senders: Senders, processor: Processor) -> None:
    light = record(user="light", bytes_in=0, bytes_out=0)
    senders.count([light, light, record(user="heavy", bytes_in=0, bytes_out=65536)])
    processor.used = 0.4
    seconds = {each["name"]: each["cpuSeconds"] for each in senders.figures()["users"]}
    assert seconds == {"light": 0.2, "heavy": 0.2}
    senders.count([light])
    processor.used = 0.5
    assert senders.figures()["total"]["cpuSeconds"] == pytest.approx(0.5)


def test_what_a_peer_chose_is_short_and_can_be_seen(senders: Senders) -> None:
    senders.count([record(user_agent="a\x1b[2J\u202e" + "x" * 60_000, user="\x00root")])
    found = senders.figures()
    (agent,) = found["userAgents"]
    assert len(agent["name"]) == LONGEST
    assert agent["name"].startswith("a?[2J?xx")
    assert found["users"][0]["name"] == "?root"


def test_a_flood_of_names_is_bounded_and_hides_nobody(senders: Senders) -> None:
    for number in range(30_000):
        senders.count([record(user=f"bot-{number}", user_agent="y" * 500 + str(number))])
        if number % 10 == 0:
            senders.count([record(user="jane", bytes_out=1000)])
    found = shortened(senders.figures())
    assert len(json.dumps(found)) < 60_000
    assert all(len(found[kind]) <= 4 * SHOWN for kind in KINDS)
    assert found["users"][0]["name"] == "jane"
    assert 2900 <= found["users"][0]["requests"] <= 3000


def test_what_waits_to_be_added_up_is_bounded_in_characters(senders: Senders) -> None:
    for number in range(100):
        senders.count([record(user_agent="z" * 60_000 + str(number))])
        assert senders._characters < 1 << 19
