"""The section `authorization`."""

from __future__ import annotations

from dataclasses import dataclass

from mcproxy.config.model.common import ReviewVersion
from mcproxy.config.model.keys import Seconds
from mcproxy.config.model.rules import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectAccessReview:
    cluster: str | None = None  # None: the one that the request goes to
    version: ReviewVersion = ReviewVersion.V1
    cache_allowed: Seconds = 300.0
    cache_denied: Seconds = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorization:
    """A named authorizer; with both parts, what no rule allows is reviewed."""

    name: str
    rules: tuple[Rule, ...] | None = None
    subject_access_review: SubjectAccessReview | None = None
