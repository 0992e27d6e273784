"""What is called covered is covered: entries of a scope and create rules, held against all that they could match."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config.checks import create_rules
from mcproxy.config.checks.cached_resources import has_all
from mcproxy.config.model import CachedResource, CreateRule

GROUPS, RESOURCES, NAMES = ("", "apps"), ("secrets", "pods", "others"), ("a", "b", "c")

names = st.lists(st.sampled_from(NAMES[:2]), unique=True).map(tuple)
entries = st.builds(
    CachedResource,
    group=st.sampled_from(GROUPS),
    version=st.sampled_from(("v1", "v2")),
    resource=st.sampled_from((*RESOURCES[:2], "*")),
    namespaces=names,
    clusters=names,
)
rules = st.builds(
    CreateRule,
    api_groups=st.lists(st.sampled_from((*GROUPS, "*")), min_size=1).map(tuple),
    resources=st.lists(st.sampled_from((*RESOURCES[:2], "*")), min_size=1).map(tuple),
    to=st.just("a"),
)


def cached(entry: CachedResource) -> set[tuple[str, ...]]:
    """All that an entry reads from a cluster with every resource in every namespace; secrets must be named."""
    return {
        (group, version, resource, namespace, cluster)
        for group, version, resource, namespace, cluster in product(GROUPS, ("v1", "v2"), RESOURCES, NAMES, NAMES)
        if (group, version) == (entry.group, entry.version)
        and (resource == entry.resource or (entry.resource == "*" and (group, resource) != ("", "secrets")))
        and (not entry.namespaces or namespace in entry.namespaces)
        and (not entry.clusters or cluster in entry.clusters)
    }


def matched(rule: CreateRule) -> set[tuple[str, str]]:
    return {
        (group, resource)
        for group, resource in product((*GROUPS, "x"), RESOURCES)
        if {"*", group} & set(rule.api_groups) and {"*", resource} & set(rule.resources)
    }


@given(entries, entries)
def test_an_entry_has_all_of_another_if_it_reads_all_that_the_other_reads(
    one: CachedResource, other: CachedResource
) -> None:
    assert has_all(one, other) == (cached(other) <= cached(one))


@given(rules, rules)
def test_a_rule_that_covers_another_matches_all_that_the_other_matches(one: CreateRule, other: CreateRule) -> None:
    assert create_rules.covers(one, other) == (matched(other) <= matched(one))


@given(rules, entries)
def test_a_rule_matches_an_entry_if_it_matches_something_of_it(rule: CreateRule, entry: CachedResource) -> None:
    resources = {(group, resource) for group, _, resource, _, _ in cached(entry)}
    assert create_rules.matches(rule, entry) == bool(resources & matched(rule))
