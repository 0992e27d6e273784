"""The section `authorization`."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config.model import Authorization, SubjectAccessReview
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.authentication_section import check_cluster, check_name
from mcproxy.config.sections.entries import Merged, Named, build_all, names_of
from mcproxy.config.sections.model_reader import read
from mcproxy.config.sections.request_rules import Where, build_rules


def build_authorization(context: Context, merged: Merged) -> list[Named[Authorization]]:
    clusters = names_of(merged, "clusters")
    return build_all(context, merged, "authorization", lambda context, place: _build(context, place, clusters))


def _build(context: Context, place: Place, clusters: Sequence[str]) -> Authorization | None:
    """Return the authorizer written at `place`; `clusters` are the names in the file."""
    check_name(context, place)
    rules, review = place.get("rules"), place.get("subjectAccessReview")
    made = read(
        context,
        place,
        Authorization,
        rules=build_rules(context, rules, where=Where.AUTHORIZATION, clusters=clusters) if rules is not None else None,
        subject_access_review=_review(context, review, clusters) if review is not None else None,
    )
    return made if made.name else None


def _review(context: Context, place: Place, clusters: Sequence[str]) -> SubjectAccessReview:
    return read(context, place, SubjectAccessReview, cluster=check_cluster(context, place, clusters))
