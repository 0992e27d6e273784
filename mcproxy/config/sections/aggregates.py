"""The section `aggregates`: several clusters served as one.

What an aggregate must be to the servers that use it is checked in `config.checks.aggregates`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config.checks.cached_resources import check_cached_resources
from mcproxy.config.checks.create_rules import check_create_rules
from mcproxy.config.context import Context
from mcproxy.config.model import (
    TO_LABEL,
    TO_PRIMARY,
    Aggregate,
    Cache,
    CachedResource,
    Cluster,
    CreateRule,
    ReadAuthorization,
    Reads,
    ResourceVersions,
    Unavailable,
)
from mcproxy.config.names import suggest
from mcproxy.config.reading.merge import Merged
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.fields import Fields, texts
from mcproxy.config.sections.section import Named, build_all, references

_OF_MEMBERS = ("cacheAllowed", "cacheDenied", "staleDecisions")
_KEEPS = "add daemon: {stateDir: /var/lib/mcproxy}, or take it out"
_GROUPS_THAT_ARE_NONE = ("core", "v1")


def build_aggregates(
    context: Context, merged: Merged, clusters: Sequence[Named[Cluster]], *, keeps_state: bool
) -> list[Named[Aggregate]]:
    """Return the aggregates with their selectors resolved; `keeps_state`: there is a `daemon.stateDir`."""
    return build_all(
        context, merged, "aggregates", lambda context, place: _aggregate(context, place, clusters, keeps_state)
    )


def _aggregate(
    context: Context, place: Place, clusters: Sequence[Named[Cluster]], keeps_state: bool
) -> Aggregate | None:
    names = [cluster.name for cluster in clusters if cluster.name]
    fields, name = Fields(place), place.text("name")
    members = _members(context, place, clusters)
    primary = _primary(context, place.get("primary"), names)
    # A name that is wrong as a member is reported there; where else it is used it counts as one.
    known = tuple(dict.fromkeys((*members, *texts(place, "clusters"))))
    cache = _cache(context, place.get("cache"), known, keeps_state)
    create = _create(context, place, known)
    for rule in place.children("create"):
        to = rule.get("to")
        if to is not None and to.string == TO_PRIMARY and not place.has("primary"):
            context.error(to, "the aggregate has no primary", "add primary: CLUSTER, or name a member")
    check_create_rules(context, place, create, cache, known)
    if name is None:
        return None
    return Aggregate(
        name=name,
        clusters=members,
        primary=primary,
        resource_versions=ResourceVersions(fields.text("resourceVersions", ResourceVersions.NUMBER)),
        unavailable=Unavailable(fields.text("unavailable", Unavailable.STALE)),
        reads=_reads(context, place.get("reads"), keeps_state),
        cache=cache,
        create=create,
    )


def _members(context: Context, place: Place, clusters: Sequence[Named[Cluster]]) -> tuple[str, ...]:
    written, selector = place.get("clusters"), place.get("clusterSelector")
    if written is not None:
        found = references(context, written, [cluster.name for cluster in clusters if cluster.name], "cluster")
        if not found and not list(written.items()):
            context.warn(written, "no-members", "has no members, so every list is empty", "name a cluster")
        return found
    if selector is None:
        return ()
    wanted = {label: value.string for label, value in selector.entries()}
    selected = [cluster for cluster in clusters if cluster.name and wanted.items() <= _labels(cluster.place).items()]
    if not selected and not context.offline:  # a label may be a variable that is not set here
        have = "no cluster has these labels" if clusters else "there are no clusters"
        right = _nearest_labels(wanted, clusters) or "give a cluster these labels, or name clusters"
        context.warn(selector, "no-members", f"{have}, so the aggregate has no members", right)
    return tuple(dict.fromkeys(cluster.name for cluster in selected if cluster.name))


def _labels(cluster: Place) -> dict[str, str | None]:
    labels = cluster.get("labels")
    return {label: value.string for label, value in labels.entries()} if labels is not None else {}


def _nearest_labels(wanted: dict[str, str | None], clusters: Sequence[Named[Cluster]]) -> str | None:
    """Return a remedy for the first label or value that no cluster has."""
    labels = [_labels(cluster.place) for cluster in clusters]
    for label, value in wanted.items():
        values = dict.fromkeys(each[label] or "" for each in labels if label in each)
        if not values:
            known = dict.fromkeys(key for each in labels for key in each)
            return f"no cluster has the label {label}: {suggest(label, known)}"
        if value not in values:
            return f"no cluster has the label {label} with the value {value}: {suggest(value or '', values)}"
    return None


def _primary(context: Context, place: Place | None, names: Sequence[str]) -> str | None:
    if place is None or place.string is None:
        return None
    if place.string not in names:
        context.error(place, f"there is no cluster {place.shown}", suggest(place.string, names))
        return None
    return place.string


def _reads(context: Context, place: Place | None, keeps_state: bool) -> Reads:
    fields, default = Fields(place), Reads()
    reads = Reads(
        authorize=ReadAuthorization(fields.text("authorize", default.authorize)),
        cache_allowed=fields.duration("cacheAllowed", default.cache_allowed),
        cache_denied=fields.duration("cacheDenied", default.cache_denied),
        stale_decisions=fields.duration("staleDecisions", default.stale_decisions),
    )
    if place is None:
        return reads
    for key in _OF_MEMBERS:
        written = place.get(key)
        if written is not None and reads.authorize is ReadAuthorization.SERVER:
            what = "belongs to authorize: Members, and this is authorize: Server: no member is asked"
            context.warn(written, "no-effect", what, "take it out, or write authorize: Members")
        elif written is not None and key == "staleDecisions" and reads.stale_decisions and not keeps_state:
            what = "a restart forgets the decisions, because there is no daemon.stateDir"
            context.warn(written, "no-state-dir", what, _KEEPS)
    return reads


def _cache(context: Context, place: Place | None, members: Sequence[str], keeps_state: bool) -> Cache:
    fields, default = Fields(place), Cache()
    entries = list(place.children("resources")) if place is not None else []
    cache = Cache(
        resources=tuple(_resource(context, entry, members) for entry in entries),
        max_staleness=fields.duration("maxStaleness", default.max_staleness),
        initial_sync_timeout=fields.duration("initialSyncTimeout", default.initial_sync_timeout),
        drop_managed_fields=fields.boolean("dropManagedFields", default.drop_managed_fields),
        persist_secrets=fields.boolean("persistSecrets", default.persist_secrets),
    )
    check_cached_resources(context, entries, cache.resources)
    persist = place.get("persistSecrets") if place is not None else None
    if persist is not None and cache.persist_secrets:
        if not any(each.group == "" and each.resource == "secrets" for each in cache.resources):
            what = 'no entry of resources names secrets, and "*" does not take them in'
            context.warn(persist, "no-effect", what, "take it out, or add secrets to resources")
        elif not keeps_state:
            what = "nothing is saved, because there is no daemon.stateDir"
            context.warn(persist, "no-state-dir", what, _KEEPS)
    return cache


def _resource(context: Context, place: Place, members: Sequence[str]) -> CachedResource:
    clusters = place.get("clusters")
    group = place.get("group")
    if group is not None:
        _check_group(context, group)
    return CachedResource(
        group=place.text("group") or "",
        version=place.text("version") or "",
        resource=place.text("resource") or "",
        namespaces=_distinct(context, place.get("namespaces")),
        clusters=references(context, clusters, members, "member") if clusters is not None else (),
    )


def _check_group(context: Context, place: Place) -> None:
    if place.string in _GROUPS_THAT_ARE_NONE:
        what = f"{place.shown} is not a group of Kubernetes"
        context.warn(place, "matches-nothing", what, 'write "": the name of the core group is empty')


def _distinct(context: Context, places: Place | None) -> tuple[str, ...]:
    """Return the texts in a list, each once; a doubled one is warned of."""
    found: dict[str, Place] = {}
    for item in places.items() if places is not None else ():
        text = item.string or ""
        if text in found:
            what = f"{item.shown} is in the list already, at {found[text].mark}"
            context.warn(item, "no-effect", what, "keep one of the two")
        found.setdefault(text, item)
    return tuple(found)


def _create(context: Context, place: Place, members: Sequence[str]) -> tuple[CreateRule, ...]:
    rules = []
    for entry in place.children("create"):
        groups = entry.get("apiGroups")
        for item in groups.items() if groups is not None else ():
            _check_group(context, item)
        rules.append(
            CreateRule(
                api_groups=_distinct(context, groups),
                resources=_distinct(context, entry.get("resources")),
                to=_to(context, entry.get("to"), members),
            )
        )
    return tuple(rules)


def _to(context: Context, place: Place | None, members: Sequence[str]) -> str:
    to = place.string if place is not None else None
    if place is not None and to is not None and to not in (*members, TO_PRIMARY, TO_LABEL):
        context.error(place, f"there is no member {place.shown}", suggest(to, [*members, TO_PRIMARY, TO_LABEL]))
    return to or ""
