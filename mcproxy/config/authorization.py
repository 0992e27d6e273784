"""Authorizers, from the file to the model."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config.authentication import check_cluster, check_name
from mcproxy.config.context import Context
from mcproxy.config.fields import Fields
from mcproxy.config.model import Authorization, SubjectAccessReview
from mcproxy.config.nodes import Place
from mcproxy.config.rules import Where, build_rules


def build(context: Context, place: Place, clusters: Sequence[str]) -> Authorization | None:
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
