"""What is called covered is covered: entries of a scope, create and conflicts rules, held against all that there is."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config.model import CachedResource, ConflictRule, CreateRule
from mcproxy.config.sections.aggregates_section import conflict_covers, conflict_matches, covers, has_all, matches

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
    assert covers(one, other) == (matched(other) <= matched(one))


@given(rules, entries)
def test_a_rule_matches_an_entry_if_it_matches_something_of_it(rule: CreateRule, entry: CachedResource) -> None:
    resources = {(group, resource) for group, _, resource, _, _ in cached(entry)}
    assert matches(rule, entry) == bool(resources & matched(rule))


conflict_rules_with_namespaces = st.builds(
    ConflictRule,
    api_groups=st.lists(st.sampled_from((*GROUPS, "*")), min_size=1).map(tuple),
    resources=st.lists(st.sampled_from((*RESOURCES[:2], "*")), min_size=1).map(tuple),
    namespaces=names,
    to=st.just("a"),
)


def meant(rule: ConflictRule) -> set[tuple[str, str, str]]:
    """The objects that a rule is for: group, resource, namespace ("" of a resource that has none)."""
    return {
        (group, resource, namespace)
        for group, resource, namespace in product((*GROUPS, "x"), RESOURCES, (*NAMES, ""))
        if rule.matches(group, resource) and rule.matches_namespace(namespace)
    }


@given(conflict_rules_with_namespaces, conflict_rules_with_namespaces)
def test_a_conflicts_rule_that_covers_another_is_for_all_that_the_other_is_for(
    one: ConflictRule, other: ConflictRule
) -> None:
    assert conflict_covers(one, other) == (meant(other) <= meant(one))


@given(conflict_rules_with_namespaces, entries)
def test_a_conflicts_rule_matches_an_entry_if_it_is_for_something_of_it(
    rule: ConflictRule, entry: CachedResource
) -> None:
    objects = {(group, resource, namespace) for group, _, resource, namespace, _ in cached(entry)}
    assert conflict_matches(rule, entry) == bool(objects & meant(rule))
