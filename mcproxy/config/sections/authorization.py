"""The section `authorization`."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config.context import Context
from mcproxy.config.model import Authorization, SubjectAccessReview
from mcproxy.config.reading.merge import Merged
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.authentication import check_cluster, check_name
from mcproxy.config.sections.fields import Fields
from mcproxy.config.sections.rules import Where, build_rules
from mcproxy.config.sections.section import Named, build_all, names_of


def build_authorization(context: Context, merged: Merged) -> list[Named[Authorization]]:
    clusters = names_of(merged, "clusters")
    return build_all(context, merged, "authorization", lambda context, place: _build(context, place, clusters))


def _build(context: Context, place: Place, clusters: Sequence[str]) -> Authorization | None:
    """Return the authorizer written at `place`; `clusters` are the names in the file."""
    check_name(context, place)
    rules, review = place.get("rules"), place.get("subjectAccessReview")
    made = Authorization(
        name=place.text("name") or "",
        rules=build_rules(context, rules, where=Where.AUTHORIZATION, clusters=clusters) if rules is not None else None,
        subject_access_review=_review(context, review, clusters) if review is not None else None,
    )
    return made if made.name else None


def _review(context: Context, place: Place, clusters: Sequence[str]) -> SubjectAccessReview:
    fields, default = Fields(place), SubjectAccessReview()
    return SubjectAccessReview(
        cluster=check_cluster(context, place, clusters),
        cache_allowed=fields.duration("cacheAllowed", default.cache_allowed),
        cache_denied=fields.duration("cacheDenied", default.cache_denied),
    )
