"""Explains requests to aggregates for `check --explain`: which clusters the response comes from, by the file alone.

Only the scope of the cache is known here, not the resources of the members. A resource that cannot be watched is not
cached, even if it is in the scope.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mcproxy.config import model
from mcproxy.dispatch.explain import shown
from mcproxy.kube.requestinfo import RequestInfo

#: Non-resource paths that an aggregate answers for all members together.
_OWN_PATHS = ("/api", "/apis", "/openapi", "/version", "/healthz", "/livez", "/readyz")
_READS = ("get", "list", "watch")
_REVIEWS = ("selfsubjectaccessreviews", "selfsubjectrulesreviews")

Lines = Iterator[tuple[str, str]]


@dataclass(slots=True)
class Answer:
    """The source of an aggregate's response: lines for the user, and the outcome."""

    aggregate: model.Aggregate
    allowed: Sequence[str]  # the clusters for which policies and the server's authorizer allow the request
    refusal: tuple[int, str] | None = None
    result: str = ""

    def lines(self, info: RequestInfo) -> Lines:
        if not info.is_resource:
            yield from self._path(info)
        elif info.group == "authentication.k8s.io" and info.resource == "selfsubjectreviews":
            self.result = "the proxy itself says who the user is"
        elif info.group == "authorization.k8s.io" and info.resource in _REVIEWS:
            asked = self._touched(_primary_first(self.aggregate))
            self.result = f"goes to {named(asked)}; the answer is the first that allows it"
        else:
            yield from self._resource(info)

    def _touched(self, members: Sequence[str]) -> tuple[str, ...]:
        return tuple(member for member in members if member in self.allowed)

    def _refuse(self, code: int, message: str) -> None:
        self.refusal = self.refusal or (code, message)

    def _path(self, info: RequestInfo) -> Lines:
        path = info.path.rstrip("/")
        if any(path == own or path.startswith(f"{own}/") for own in _OWN_PATHS):
            self.result = f"answered for members {named(self._touched(self.aggregate.clusters))} together"
            return
        yield "scope", "not a path of the aggregate's own"
        self._to_primary()

    def _to_primary(self) -> None:
        primary = self.aggregate.primary
        if primary is None:
            self._refuse(404, "it is not aggregated, and the aggregate has no primary")
        elif primary not in self.allowed:
            self._refuse(403, f"it is for the primary {shown(primary)}, which is left out")
        else:
            self.result = f"goes to the primary {shown(primary)}, which may have its own say"

    def _resource(self, info: RequestInfo) -> Lines:
        resources = self.aggregate.cache.resources
        entries = [(number, entry) for number, entry in enumerate(resources) if _is_for(entry, info)]
        if not entries:
            yield "scope", "no entry of cache.resources has it"
            self._to_primary()
            return
        covered = [(number, entry) for number, entry in entries if _covers(entry, info)]
        for number, entry in covered or entries:
            yield "scope", f"cache.resources[{number}] of members {named(self._members_of(entry))}{_where(entry)}"
        members = self._touched([name for name in self.aggregate.clusters if _has(covered, name)])
        if not covered:
            self._outside_of_namespaces(info)
        elif not members:
            self._refuse(403, "no member that has it in the scope is left")
        elif info.subresource or info.verb not in (*_READS, "create", "deletecollection"):
            self.result = f"goes to the one of members {named(members)} that has the object"
            yield from self._conflicts(info, members)
            if info.verb in ("update", "patch") and not info.subresource:
                yield from self._create(info, "an object that is not there is created by ")
        elif info.verb == "create":
            yield from self._create(info, "")
        elif info.verb == "deletecollection":
            self.result = f"goes to members {named(members)}, and their answers are merged"
        else:
            yield from self._read(info, members)

    def _members_of(self, entry: model.CachedResource) -> tuple[str, ...]:
        return tuple(name for name in self.aggregate.clusters if not entry.clusters or name in entry.clusters)

    def _outside_of_namespaces(self, info: RequestInfo) -> None:
        if info.verb in ("list", "watch"):
            self.result = f"an empty {info.verb} with a Warning: no entry covers namespace {shown(info.namespace)}"
        else:
            self._refuse(404, f"no entry of cache.resources covers namespace {shown(info.namespace)}")

    def _read(self, info: RequestInfo, members: Sequence[str]) -> Lines:
        reads = self.aggregate.reads
        if reads.authorize is model.ReadAuthorization.SERVER:
            yield "reads", "the authorization of the server alone decides"
        else:
            what = f"{info.verb} {info.resource}{f' in namespace {info.namespace}' if info.namespace else ''}"
            yield "reads", f"each member is asked whether the user may {what}; one that denies it is left out"
        yield "unavailable", f"{self.aggregate.unavailable}, for a member that is down"
        if info.version:
            served = f"{info.resource} in other versions than {info.version} alone"
            yield "versions", f"a member that serves {served} is left out with a Warning; mcproxy status names it"
        yield from self._conflicts(info, members)
        self.result = f"answered from the cache of members {named(members)}"

    def _conflicts(self, info: RequestInfo, members: Sequence[str]) -> Lines:
        """Return lines about the member whose object is used or shown if several members have it."""
        if len(members) < 2:
            return
        namespace = "" if info.resource == "namespaces" else info.namespace
        rules = [
            (number, rule)
            for number, rule in enumerate(self.aggregate.conflicts)
            if rule.matches(info.group, info.resource)
            and (rule.matches_namespace(namespace) or (not info.name and not namespace))
        ]
        if info.verb in ("list", "watch"):
            for number, rule in rules if info.name or not namespace else rules[:1]:
                if rule.show is model.Show.ONE:
                    where = f" in namespaces {named(rule.namespaces)}" if rule.namespaces and not namespace else ""
                    yield "conflicts", f"conflicts[{number}], to: {rule.to}, show: One: one object of each name{where}"
        elif not rules:
            without = "the first member's, with a Warning" if info.verb == "get" else "409, unless a label chooses"
            yield "conflicts", f"no rule: of a name that several members have it is {without}"
        else:
            number, rule = rules[0]
            chosen = self.aggregate.primary if rule.to == model.TO_PRIMARY else rule.to
            counts = "" if chosen in members else ", which is left out, so the rule does not count"
            yield "conflicts", f"conflicts[{number}], to: {rule.to}, of a name that several members have{counts}"

    def _create(self, info: RequestInfo, lead: str) -> Lines:
        for number, rule in enumerate(self.aggregate.create):
            if not rule.matches(info.group, info.resource):
                continue
            yield "create", f"{lead}create[{number}], to: {rule.to}"
            if not lead:
                self._create_in(rule.to)
            return
        yield "create", f"{lead}no rule"
        if not lead:
            self._refuse(405, "no create rule of the aggregate matches")

    def _create_in(self, to: str) -> None:
        if to == model.TO_LABEL:
            self.result = "goes to the member that the label mcproxy.io/cluster of the object names"
            return
        target = (self.aggregate.primary or "") if to == model.TO_PRIMARY else to
        if target not in self.allowed:
            self._refuse(403, f"it would go to {shown(target)}, which is left out")
        else:
            self.result = f"goes to {shown(target)}, which may have its own say"


def describe_aggregate(aggregate: model.Aggregate) -> str:
    primary = f", primary {shown(aggregate.primary)}" if aggregate.primary is not None else ", no primary"
    return f"{shown(aggregate.name)}: members {named(aggregate.clusters)}{primary}"


def _primary_first(aggregate: model.Aggregate) -> tuple[str, ...]:
    """Return the clusters of an aggregate, the primary first."""
    return tuple(dict.fromkeys((*([aggregate.primary] if aggregate.primary else ()), *aggregate.clusters)))


def named(clusters: Sequence[str]) -> str:
    return ", ".join(map(shown, clusters)) or "none"


def _is_for(entry: model.CachedResource, info: RequestInfo) -> bool:
    return entry.version == info.version and entry.names(info.group, info.resource)


def _covers(entry: model.CachedResource, info: RequestInfo) -> bool:
    return not (entry.namespaces and info.namespace) or info.namespace in entry.namespaces


def _has(entries: Sequence[tuple[int, model.CachedResource]], member: str) -> bool:
    return any(not entry.clusters or member in entry.clusters for _, entry in entries)


def _where(entry: model.CachedResource) -> str:
    return f", namespaces {named(entry.namespaces)}" if entry.namespaces else ""
