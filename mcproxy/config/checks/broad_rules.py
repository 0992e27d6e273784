"""Authorization rules that grant more than is apparent: secrets, exec and impersonation through `*`."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from mcproxy.config.model import Authorization, Rule
from mcproxy.config.reading.context import Context
from mcproxy.config.sections.entries import ListSection
from mcproxy.config.sections.rule_sets import ALL, NOTHING, NameSet, covers, name_set
from mcproxy.kube.constrained_impersonation import MODES, verb_of

_OF_USERS = frozenset(map(verb_of, MODES))


def warn_of_broad_rules(
    context: Context, authorizers: ListSection[Authorization], alone: Collection[str | None]
) -> None:
    """Warn of each rule whose `*` includes secrets, exec or impersonation.

    `alone` are the names of authorizers for clusters with identity Proxy, or for aggregates whose reads only the server
    authorizes. No cluster authorizes these requests again. A rule with all verbs is reported only if it names no users
    and its authorizer is in `alone`. With named users the rule is assumed to be intended.
    """
    for authorizer_place, authorizer in authorizers.valid:
        for place, rule in zip(authorizer_place.children("rules"), authorizer.rules or (), strict=False):
            where = place.get("resources") or place
            if "*" in rule.verbs and not (_is_for_everybody(rule) and authorizer.name in alone):
                continue
            reached = list(_reached(rule))
            if reached:
                what = f"reaches {' and '.join(reached)} without naming {'it' if len(reached) == 1 else 'them'}"
                right = f"exclude {'it' if len(reached) == 1 else 'them'}, or list the resources that are meant"
                context.warn(where, "broad-rule", what, right)
            if "impersonate" in rule.verbs and not rule.resource_names:
                what = "may impersonate any user, including system:masters"
                context.warn(where, "broad-rule", what, "list users and groups in resourceNames")
            elif not rule.resource_names and not _OF_USERS.isdisjoint(rule.verbs):
                what = "may impersonate any user in requests for which there are rules with impersonate-on"
                context.warn(where, "broad-rule", what, "list users and groups in resourceNames")


def _is_for_everybody(rule: Rule) -> bool:
    everybody = not (rule.users or rule.user_groups or rule.service_accounts)
    return everybody or "*" in rule.users or "*" in rule.user_groups or "system:authenticated" in rule.user_groups


def _reached(rule: Rule) -> Iterator[str]:
    verbs, resources = name_set(rule.verbs, NOTHING), name_set(rule.resources, NOTHING)
    if not covers(name_set(rule.api_groups, NOTHING), NameSet(("",))):
        return
    reads = any(covers(verbs, NameSet((verb,))) for verb in ("get", "list", "watch"))
    for resource, given in (("secrets", reads), ("pods/exec", covers(verbs, NameSet(("create",))))):
        named = resource in rule.resources or covers(name_set(rule.resource_names, ALL), NameSet(("",))) is False
        if given and not named and covers(resources, NameSet((resource,))):
            yield resource
