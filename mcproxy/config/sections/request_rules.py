"""Reads the rules of dispatch policies and authorizers.

Both have the same form. An item that can never match (a pattern in a list without patterns, an unknown verb, an
inverted URL) is an error. An empty list that matches nothing, and items without effect, are warnings.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

from mcproxy.config.model import Rule
from mcproxy.config.model.keys import keys_of
from mcproxy.config.reading import nodes
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.rule_names import RuleReport, check_rule_names
from mcproxy.config.suggestions import suggest
from mcproxy.kube.builtin_resources import METHODS, RESOURCE_VERBS
from mcproxy.kube.constrained_impersonation import MODES, is_impersonation, verb_of, verb_on

# -- The items of a rule's lists: ``*``, plain items, ``-inverted`` ones, and patterns that end in a star --------------
# Source: the table of fields in the reference of dispatch, and Kubernetes for verbs.

#: Verbs that occur only in reviews by authorizers.
_AUTHORIZER_VERBS = (
    "impersonate", "bind", "escalate", "approve", "sign", "attest", "use", "request-serviceaccounts-token-audience",
    "unsafe-delete-ignore-read-errors",
)  # fmt: skip
_OF_REQUESTS = tuple(dict.fromkeys((*RESOURCE_VERBS, *METHODS)))
#: Verbs of constrained impersonation (KEP-5284).
_OF_MODES = tuple(
    verb for mode in MODES for verb in (verb_of(mode), *(verb_on(mode, requested) for requested in _OF_REQUESTS))
)
VERBS = (*_OF_REQUESTS, *_AUTHORIZER_VERBS, *_OF_MODES)
#: The verbs of requests for resources, by HTTP method.
VERB_OF_METHOD = {"post": "create", "put": "update", "head": "get"}
#: The verbs of other requests, by the verb of requests for resources.
METHOD_OF_VERB = {"list": "get", "watch": "get", "create": "post", "update": "put", "deletecollection": "delete"}


_READING, _WRITING = ("get", "list", "watch"), ("create", "update", "patch", "delete", "deletecollection")
#: Names for groups of verbs in rules of other systems.
_SEVERAL = {"read": _READING, "view": _READING, "write": _WRITING, "edit": _WRITING, "modify": _WRITING}


class Kind(enum.Enum):
    """The kind of the items of a list."""

    VERB = "verbs"
    GROUP = "apiGroups"
    RESOURCE = "resources"
    NAME = "names"  # names that are never empty
    NAME_OR_NONE = "names, and nothing for requests without one"
    URL = "nonResourceURLs"


KINDS = {
    "verbs": Kind.VERB,
    "users": Kind.NAME,
    "userGroups": Kind.NAME,
    "apiGroups": Kind.GROUP,
    "resources": Kind.RESOURCE,
    "resourceNames": Kind.NAME_OR_NONE,
    "namespaces": Kind.NAME_OR_NONE,
    "clusters": Kind.NAME,
    "nonResourceURLs": Kind.URL,
}

Fault = tuple[str, str]  # mistake, remedy


def is_filled(place: Place, key: str) -> bool:
    """Whether a list has a valid or invalid entry."""
    entry = place.node.entries.get(key) if isinstance(place.node, nodes.Mapping) else None
    if entry is None:
        return False
    node = entry.node
    # A single value instead of a list is already reported, and counts as an entry.
    if isinstance(node, nodes.Sequence):
        return bool(node.items)
    return not (isinstance(node, nodes.Scalar) and node.value is None)


def read_items(context: Context, place: Place | None, kind: Kind) -> tuple[str, ...]:
    """Return the valid items of a list as written; report invalid items, and warn of items without effect."""
    if place is None:
        return ()
    good: dict[str, Place] = {}
    for item in place.items():
        text = item.string
        if text is None:
            continue
        found = fault(text, kind)
        if found is not None:
            context.error(item, f"{item.shown} {found[0]}", found[1])
        elif text in good:
            context.warn(
                item, "no-effect", f"{item.shown} is in the list already, at {good[text].mark}", "keep one of the two"
            )
        else:
            good[text] = item
    for item, what, right in _without_effect(good):
        context.warn(item, "no-effect", f"{item.shown} {what}", right)
    return tuple(good)


def is_good(text: str, kind: Kind) -> bool:
    return fault(text, kind) is None


def fault(text: str, kind: Kind) -> Fault | None:
    """Return the mistake in an item that cannot match, or that matches something else than it appears to."""
    inverted = text.startswith("-")
    name = text[1:] if inverted else text
    if inverted and kind is Kind.URL:
        return "is inverted, which URLs cannot be", "name the URLs that match"
    if name == "*":
        return ("excludes everything", "name what is excluded, or take it out") if inverted else None
    if not name and kind in (Kind.VERB, Kind.RESOURCE, Kind.NAME):
        return ("excludes nothing", "write a name behind the dash") if inverted else ("is empty", "write a name")
    if kind is Kind.VERB:
        return _verb(name, "-" if inverted else "")
    return _OF_KIND[kind](name)


def _verb(name: str, dash: str) -> Fault | None:
    if "*" in name:
        if is_impersonation(name.rstrip("*")):
            return "is a pattern, and verbs have none", 'write each verb by itself: "*" includes none of impersonation'
        return "is a pattern, and verbs have none", 'write "*" for all, or each verb by itself'
    if name in VERBS:
        return None
    if name in _SEVERAL:
        return "is not a verb but several", f"write {', '.join(dash + verb for verb in _SEVERAL[name])}"
    return "is not a known verb", suggest(dash + name, [dash + verb for verb in VERBS])


def _group(name: str) -> Fault | None:
    if "*" in name:
        return "is a pattern, and apiGroups have none", 'write "*" for all, or each group by itself'
    group, slash, _ = name.partition("/")
    if slash:
        return "is more than a group", f'write "{group}": rules are for all versions of a group'
    return None


def _resource(name: str) -> Fault | None:
    resource, slash, subresource = name.partition("/")
    if "*" in subresource:
        subresources = f"{resource}/log" if resource != "*" else "*/status"
        return "is a pattern that resources do not have", f'name each subresource, as in "{subresources}", or write "*"'
    if "*" in resource and resource != "*":
        return "is a pattern that resources do not have", 'write "*" for all, or each resource by itself'
    if not resource or (slash and not subresource):
        return "is half a name", "write RESOURCE, RESOURCE/SUBRESOURCE or */SUBRESOURCE"
    if "/" in subresource and resource != "userextras":  # its subresources are extra keys, such as example.com/origin
        right = f'write "{resource}/{subresource.partition("/")[0]}": nothing behind a subresource is distinguished'
        return "has more than a resource and a subresource", right
    return None


def _name(name: str) -> Fault | None:
    if "*" in name[:-1]:
        return "has a star before its end", "write one star, at the end, or none"
    return None


def _url(name: str) -> Fault | None:
    if not name.startswith("/"):
        return "is not a path", 'write a path such as /healthz or /metrics/*, or "*" for all'
    if "?" in name or "#" in name:
        return "is more than a path", "end it before the query"
    if "*" in name[:-1]:
        return "has a star before its end", "write one star, at the end, or none"
    return None


_OF_KIND = {
    Kind.GROUP: _group,
    Kind.RESOURCE: _resource,
    Kind.NAME: _name,
    Kind.NAME_OR_NONE: _name,
    Kind.URL: _url,
}


def _without_effect(items: dict[str, Place]) -> Iterator[tuple[Place, str, str]]:
    """Yield valid items that other items make redundant."""
    mixed = any(not text.startswith("-") for text in items)
    for text, place in items.items():
        if "*" in items:
            if text != "*":
                yield place, 'has no effect with "*", which matches all', "keep one of the two"
        elif mixed and text.startswith("-"):
            yield place, "is ignored, because the list has plain items too", "keep the plain ones, or the inverted ones"


class Where(enum.Enum):
    """The section of a rule: rules of `authorization` can have further verbs that requests do not have."""

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
    """Return the rules in the list at `places`; report and omit wrong items.

    `clusters` are the names in the file, `served` those that the server serves (None: any of the file). `rejects`: the
    rules select requests to refuse.
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
        key.field: read_items(context, place.get(name), KINDS[name])
        for key in keys_of(Rule)
        if (name := key.path[0]) in KINDS
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
    """Report a rule, or a half of a rule, that matches nothing because a required list is empty."""
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
    """Report verbs that no request of the rule's kind has."""
    about_resources = is_filled(place, "apiGroups") or is_filled(place, "resources")
    about_urls = is_filled(place, "nonResourceURLs")
    for item in place.children("verbs"):
        verb = (item.string or "").removeprefix("-")
        if verb not in VERBS:
            continue
        of_requests = verb in RESOURCE_VERBS or verb in METHODS
        if not of_requests:
            if where is Where.DISPATCH:
                report.item(item, "is the verb of no request", "take it out: only authorizers use it")
        elif about_resources and not about_urls and verb not in RESOURCE_VERBS:
            meant = VERB_OF_METHOD.get(verb)
            right = f'did you mean "{meant}"?' if meant else "take it out: it is the HTTP method of other requests"
            report.item(item, "is the verb of no request for a resource", right)
        elif about_urls and not about_resources and verb not in METHODS:
            meant = METHOD_OF_VERB.get(verb)
            right = f'did you mean "{meant}"?' if meant else "take it out: it is a verb of requests for resources"
            report.item(item, "is the verb of no request for a nonResourceURL", right)


def _check_clusters(context: Context, place: Place, clusters: Sequence[str], served: Sequence[str] | None) -> None:
    here = clusters if served is None else served
    for item in place.children("clusters"):
        name = (item.string or "").removeprefix("-")
        if name == "*" or not is_good(name, Kind.NAME):
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
