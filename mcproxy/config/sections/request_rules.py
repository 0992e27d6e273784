"""Rules of dispatch policies and authorizers.

Both have the same form. An item that can never match (a pattern where there are none, an unknown verb, an inverted URL)
is an error; an empty list that matches nothing, and items without effect, are warnings.
The items of each kind of list are checked in `rule_items`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

from mcproxy.config.model import Rule
from mcproxy.config.model.keys import keys_of
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.rule_checks.rule_names import RuleReport, check_rule_names
from mcproxy.config.sections import rule_items
from mcproxy.config.sections.rule_items import Kind, is_filled
from mcproxy.config.suggestions import suggest
from mcproxy.kube.builtin_resources import METHODS, RESOURCE_VERBS


class Where(enum.Enum):
    """The section of a rule: dispatch matches requests, authorization also verbs that only authorizers know."""

    DISPATCH = "dispatch"
    AUTHORIZATION = "authorization"


def build_rules(
    context: Context,
    places: Place,
    *,
    where: Where,
    clusters: Sequence[str],
    served: Sequence[str] | None = None,
    rejects: bool = False,
) -> tuple[Rule, ...]:
    """Return the rules in the list at `places`; wrong items are reported and left out.

    `clusters` are the names in the file, `served` those that the server serves (None: any of the file); `rejects`: what
    the rules match is refused.
    """
    rules = []
    report = RuleReport(context, rejects=rejects, authorizes=where is Where.AUTHORIZATION)
    for place in places.items():
        rules.append(_rule(report, place, where, clusters, served))
        check_rule_names(report, place)
    return tuple(rules)


def _rule(
    report: RuleReport, place: Place, where: Where, clusters: Sequence[str], served: Sequence[str] | None
) -> Rule:
    context = report.context
    lists = {
        key.field: rule_items.read(context, place.get(name), rule_items.KINDS[name])
        for key in keys_of(Rule)
        if (name := key.path[0]) in rule_items.KINDS
    }
    rule = Rule(service_accounts=tuple(_service_accounts(context, place)), **lists)
    _check_halves(report, place)
    _check_verbs(report, place, where)
    _check_clusters(context, place, clusters, served)
    return rule


def _service_accounts(context: Context, place: Place) -> Iterator[tuple[str, str]]:
    for account in place.children("serviceAccounts"):
        namespace, name = account.get("namespace"), account.get("name")
        if namespace is None or name is None:
            continue
        good = True
        for part in (namespace, name):
            text = part.string or ""
            if "*" in text or ":" in text or text.startswith("-"):
                what = f"{part.shown} is not a name: service accounts are named one by one"
                right = 'write a plain name, or for all of a namespace users: ["system:serviceaccount:NAMESPACE:*"]'
                context.error(part, what, right)
                good = False
        if good:
            yield namespace.string or "", name.string or ""


def _check_halves(report: RuleReport, place: Place) -> None:
    """Report a rule, or a half of one, that matches nothing: each half needs all of its lists."""
    groups, resources = is_filled(place, "apiGroups"), is_filled(place, "resources")
    urls = is_filled(place, "nonResourceURLs")
    if not is_filled(place, "verbs"):
        report.rule(place, "has no verbs, so it matches nothing", 'add verbs: ["*"], or those that are meant')
    if resources and not groups:
        right = 'add apiGroups: ["*"], [""] for the core group, or those that are meant'
        report.rule(place, "has resources without apiGroups, so it matches no resource", right)
    elif groups and not resources:
        right = 'add resources: ["*"], or those that are meant'
        report.rule(place, "has apiGroups without resources, so it matches no resource", right)
    elif not groups and not urls:
        what = "has neither resources nor nonResourceURLs, so it matches nothing"
        report.rule(place, what, 'add apiGroups and resources, nonResourceURLs, or ["*"] of each')
    if not resources and not groups:
        for key in ("resourceNames", "namespaces"):
            if urls and is_filled(place, key):
                what = "applies to resources, and the rule has none: it has no effect on nonResourceURLs"
                report.context.warn(
                    place.get(key) or place, "no-effect", what, "take it out, or add apiGroups and resources"
                )


def _check_verbs(report: RuleReport, place: Place, where: Where) -> None:
    """Report verbs that no request has of the kind that the rule is about."""
    about_resources = is_filled(place, "apiGroups") or is_filled(place, "resources")
    about_urls = is_filled(place, "nonResourceURLs")
    for item in place.children("verbs"):
        verb = (item.string or "").removeprefix("-")
        if verb not in rule_items.VERBS:
            continue
        of_requests = verb in RESOURCE_VERBS or verb in METHODS
        if not of_requests:
            if where is Where.DISPATCH:
                report.item(item, "is the verb of no request", "take it out: only authorizers use it")
        elif about_resources and not about_urls and verb not in RESOURCE_VERBS:
            meant = rule_items.VERB_OF_METHOD.get(verb)
            right = f'did you mean "{meant}"?' if meant else "take it out: it is the HTTP method of other requests"
            report.item(item, "is the verb of no request for a resource", right)
        elif about_urls and not about_resources and verb not in METHODS:
            meant = rule_items.METHOD_OF_VERB.get(verb)
            right = f'did you mean "{meant}"?' if meant else "take it out: it is a verb of requests for resources"
            report.item(item, "is the verb of no request for a nonResourceURL", right)


def _check_clusters(context: Context, place: Place, clusters: Sequence[str], served: Sequence[str] | None) -> None:
    here = clusters if served is None else served
    for item in place.children("clusters"):
        name = (item.string or "").removeprefix("-")
        if name == "*" or not rule_items.is_good(name, Kind.NAME):
            continue
        prefix = name.removesuffix("*")
        matches = [c for c in here if (c.startswith(prefix) if name.endswith("*") else c == name)]
        if not name.endswith("*") and name not in clusters:
            dash = "-" if (item.string or "").startswith("-") else ""
            context.error(item, f"there is no cluster {item.shown}", suggest(dash + name, [dash + c for c in clusters]))
        elif not matches:
            context.warn(
                item, "matches-nothing", f"{item.shown} matches no cluster that is served here", suggest(name, here)
            )
