"""Answers API servers' reviews by a server's authenticators and its authorizer.

    TokenReview           a token that an authenticator of the server accepts; else the backend is asked
    SubjectAccessReview   for a group-version with an API service, the server's authorizer decides, as for requests.
                          For other requests it can only refuse: if it allows, the backend is asked

The client needs the right to create such reviews in the backend (ClusterRole system:auth-delegator), even if the
server's own rules allow them. If the backend knows only the proxy as a user (`identity: Proxy`), a user's rights there
are the proxy's rights. Such a backend does not review the right to create reviews if rules decide and no cluster
reviews tokens.

Sources: k8s.io/kubernetes `pkg/registry/authentication/tokenreview/storage.go`, `pkg/registry/authorization/
subjectaccessreview/rest.go`; audiences: k8s.io/apiserver `pkg/authentication/authenticator/audagnostic.go`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser, is_limited
from mcproxy.identity.authorization.access_review import Decision
from mcproxy.identity.authorization.attributes import forbidden
from mcproxy.identity.review_api.review_body import JSONDict
from mcproxy.kube.status import StatusError
from mcproxy.requests.coroutines import settled

if TYPE_CHECKING:
    from mcproxy.config.model import APIService
    from mcproxy.identity.authentication.authenticator import BearerTokenAuthenticator
    from mcproxy.identity.authorization.access_review import Reviewer
    from mcproxy.identity.authorization.attributes import Attributes
    from mcproxy.identity.authorization.authorizer import Authorizer
    from mcproxy.identity.own_grants import MastersGrant
    from mcproxy.identity.review_api.review_body import AccessReview, TokenReviewSpec
    from mcproxy.kube.user import UserInfo

_BY_CLUSTER = "tokenReview"  # the authenticator of a cluster's own tokens


class ServerReviewer:
    """Answers the reviews that API servers create at one server."""

    __slots__ = (
        "_as_proxy",
        "_audiences",
        "_authorizer",
        "_masters",
        "_right_needed",
        "_rights",
        "_services",
        "_shares_accounts",
        "_tokens",
        "home",
    )

    def __init__(
        self,
        *,
        home: str,
        tokens: BearerTokenAuthenticator | None,
        authorizer: Authorizer | None,
        rights: Reviewer,
        services: Mapping[str, APIService],
        masters: MastersGrant,
        audiences: tuple[str, ...] = (),
        shares_accounts: bool = False,
        as_proxy: bool = False,
        right_needed: bool = True,
    ) -> None:
        """`home` is the backend's cluster, which defines the users' names; for an aggregate it is the primary or first
        member.

        `masters` decides whether the backend's API services learn of system:masters. `rights` is the reviewer for
        clients; `services` are the server's API services by group-version; `audiences` are those of the server's own
        tokens (`tokenReview.audiences`), empty if unknown. `as_proxy`: the backend knows only the proxy as a user, so
        `rights` are the proxy's rights. `right_needed`: the client needs a right in the backend.
        """
        self._as_proxy = as_proxy
        self._right_needed = right_needed
        self.home = home
        self._tokens = tokens
        self._authorizer = authorizer
        self._masters = masters
        self._rights = rights
        self._services = services
        self._audiences = audiences
        self._shares_accounts = shares_accounts

    @property
    def knows_tokens(self) -> bool:
        """Whether TokenReviews can be answered here at least in some cases."""
        return self._tokens is not None

    @property
    def decides_access(self) -> bool:
        """Whether SubjectAccessReviews can be answered here at least in some cases."""
        return self._authorizer is not None

    async def check_right(self, user: UserInfo, attributes: Attributes) -> None:
        """Raise StatusError (403, 503) unless the backend allows `user` to create such reviews."""
        if not self._right_needed:
            return
        decision = await self._of_backend(user, attributes)
        if not decision.allowed:
            raise forbidden(user, attributes, decision.reason)

    async def _of_backend(self, user: UserInfo, attributes: Attributes) -> Decision:
        """Return the backend's decision. Raises StatusError (503)."""
        return await settled(self._rights.decide(user, attributes))

    async def token_status(self, review: TokenReviewSpec, client: str, server: str) -> JSONDict | None:
        """Return the status of a TokenReview; None if the backend must be asked.

        `client` is the client's address. Raises StatusError (503) if an authenticator that might accept the token is
        unavailable.
        """
        tokens = self._tokens
        if tokens is None:
            return None
        try:
            caller = await settled(tokens.authenticate(review.token, client, None, server))
            user = await self._masters.told(caller.for_cluster(self.home))
        except StatusError as error:
            if error.code in (401, 403):  # not a user of this server, or a user of another cluster
                return None
            raise
        audiences = self._audiences_for(caller, review.audiences)
        if review.audiences and not audiences:
            return None
        status: JSONDict = {"authenticated": True, "user": _user_info(user)}
        if audiences:
            status["audiences"] = list(audiences)
        return status

    def _audiences_for(self, caller: AuthenticatedUser, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Return the requested audiences for which a token was accepted.

        A cluster's own token names its audiences, so this cluster must be asked.
        """
        if caller.authenticator == _BY_CLUSTER:
            return ()
        return tuple(each for each in wanted if each in self._audiences) if wanted else self._audiences

    async def access_status(self, review: AccessReview) -> JSONDict | None:
        """Return the status of a SubjectAccessReview; None if the backend must be asked.

        Raises StatusError (503) if a reviewer does not answer.
        """
        if self._authorizer is None:
            return None
        service = self._service_of(review.attributes)
        decision = await self._decide(self._authorizer, review, service)
        if decision.allowed and service is None:
            if not self._as_proxy:
                return None
            decision = await self._of_backend(*review)
        status: JSONDict = {"allowed": decision.allowed}
        if decision.reason:
            status["reason"] = decision.reason
        return status

    async def _decide(self, authorizer: Authorizer, review: AccessReview, service: APIService | None) -> Decision:
        subject, attributes = review
        cluster, authority = (self.home, "") if service is None else (service.cluster, service.authority)
        reviewer = authorizer.reviewer or authority or cluster
        if reviewer != self.home and is_limited(subject):
            # Another cluster would treat these names as its own accounts.
            if authorizer.allowed_by_rules(subject, attributes, cluster):
                return await settled(authorizer.decide(subject, attributes, cluster, authority))
            of_home = AuthenticatedUser(subject, self.home, self._shares_accounts)
            try:
                subject = of_home.for_cluster(reviewer)
            except StatusError as refusal:
                return Decision(False, refusal.message)
        return await settled(authorizer.decide(subject, attributes, cluster, authority))

    def _service_of(self, attributes: Attributes) -> APIService | None:
        """Return the API service of these attributes; None if a `*`, or a missing version, includes other requests."""
        if attributes.is_resource:
            return self._services.get(f"{attributes.group}/{attributes.version}")
        parts = attributes.path.split("/", 4)
        return self._services.get("/".join(parts[2:4])) if parts[:2] == ["", "apis"] else None


def _user_info(user: UserInfo) -> JSONDict:
    info: JSONDict = {"username": user.name}
    if user.uid:
        info["uid"] = user.uid
    if user.groups:
        info["groups"] = list(user.groups)
    if user.extra:
        info["extra"] = {key: list(values) for key, values in user.extra}
    return info
