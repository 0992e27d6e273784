"""Times of conditions."""

from __future__ import annotations

from mcproxy.services.exports.conflict_resolution import mcs_condition, with_transition_times

NOW, BEFORE = "2026-02-02T00:00:00Z", "2026-01-01T00:00:00Z"
WANTED = {
    "conditions": [mcs_condition("Valid", "True", "Valid", "a"), mcs_condition("Conflict", "False", "NoConflicts", "b")]
}


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    observed = {
        "conditions": [
            {"type": "Valid", "status": "True", "reason": "Other", "message": "x", "lastTransitionTime": BEFORE},
            {"type": "Conflict", "status": "True", "reason": "TypeConflict", "lastTransitionTime": BEFORE},
        ]
    }
    found = with_transition_times(WANTED, observed, NOW)
    assert [each["lastTransitionTime"] for each in found["conditions"]] == [BEFORE, NOW]
    assert "lastTransitionTime" not in WANTED["conditions"][0]


def test_what_is_observed_may_be_anything() -> None:
    for observed in (None, {}, {"conditions": None}, {"conditions": [1, {}, {"type": 1}, {"type": "Valid"}]}):
        found = with_transition_times(WANTED, observed, NOW)
        assert [each["lastTransitionTime"] for each in found["conditions"]] == [NOW, NOW]


def test_a_status_without_conditions_stays_without() -> None:
    assert with_transition_times({"clusters": []}, None, NOW) == {"clusters": []}
