"""`bench.ingress_scale`: its requests reach rules of every kind, and what it measures is what a worker has."""

from __future__ import annotations

from collections import Counter

from bench.ingress_scale import HOST, MANY, decision, rules, targets
from mcproxy.services.ingress.router import Router, routes_of


def test_requests_are_for_rules_of_every_kind_and_for_none() -> None:
    router = Router((route, route.path_type) for route in routes_of([rules(100)]))
    kinds = Counter(None if found is None else found[0] for found in (router.find(HOST, each) for each in targets(100)))
    assert set(kinds) == {"Exact", "Prefix", "Regex", None}
    assert decision(router, targets(10)[:50]) > 0


def test_ten_thousand_rules_are_what_is_measured() -> None:
    assert len(rules(MANY).rules[0].paths) == MANY
