"""The authenticators and authorizers of one Runtime. Their caches survive a reload.

These objects send reviews to clusters. A reload replaces the live objects of clusters. So each cluster name has a
lasting `ClusterReference`, which refers to the cluster object in force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IReactorTime

from mcproxy.config import model
from mcproxy.identity.authentication.authenticator import NO_AUTHENTICATION, Authenticator, NoAuthentication
from mcproxy.identity.authentication.token_union import UnionTokenAuthenticator
from mcproxy.identity.authentication.x509.verifier import certificate_homes
from mcproxy.identity.authorization.access_review import SubjectAccessReviewer
from mcproxy.identity.authorization.authorizer import Authorizer, ImpersonationAuthorizer, ReviewersByCluster
from mcproxy.identity.own_grants import TIMES, ConstrainedGrant, MastersGrant
from mcproxy.identity.singleflight import ReviewLoad
from mcproxy.identity.upstream_identity_headers import UpstreamIdentityHeaders
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.upstream_context import UpstreamContext

if TYPE_CHECKING:
    from mcproxy.identity.review_api.server_reviewer import ServerReviewer


class ClusterReference:
    """Refers to the cluster in force with one name."""

    __slots__ = ("cluster",)

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def __call__(self) -> Cluster:
        return self.cluster


class SubjectAccessReviewers:
    """SubjectAccessReviewers by cluster and cache times, each created when first needed."""

    def __init__(
        self,
        clusters: Mapping[str, Cluster],
        current: Mapping[str, ClusterReference],
        clock: IReactorTime,
        previous: SubjectAccessReviewers | None,
    ) -> None:
        self._clusters = clusters
        self._current = current
        self._clock = clock
        known = {} if previous is None else previous._live
        self._live: dict[tuple[str, str, float, float, bool], SubjectAccessReviewer] = {
            key: live for key, live in known.items() if key[0] in current
        }

    def loads(self) -> Iterator[tuple[str, ReviewLoad]]:
        """Yield cluster name and load of each reviewer; a cluster has a reviewer per API version and cache times."""
        for (cluster, *_), live in self._live.items():
            yield cluster, live.load

    def of(self, settings: model.SubjectAccessReview) -> ReviewersByCluster:
        """Return a function from a cluster's name to its reviewer, with the cache times of `settings`."""
        return lambda cluster: self._reviewer(cluster, settings, of_the_proxy=False)

    def as_seen_by(self, settings: model.SubjectAccessReview) -> ReviewersByCluster:
        """Return such a function for the rights that the cluster applies to a user's request.

        With `identity: Proxy` these are the proxy's rights, because the cluster sees the proxy as the only user.
        """

        def reviewer(cluster: str) -> SubjectAccessReviewer:
            identity = self._clusters[cluster].config.identity
            return self._reviewer(cluster, settings, of_the_proxy=identity is model.UpstreamIdentity.PROXY)

        return reviewer

    def system_masters_decision(self, cluster: str) -> MastersGrant:
        """Return the decision whether to send a user's group `system:masters` to API services of a backend."""
        reviewer = self._reviewer(cluster, TIMES, of_the_proxy=True)
        return MastersGrant(self._clusters[cluster].config.identity, reviewer)

    def constrained_grant(self, cluster: str) -> ConstrainedGrant:
        """Return the decision whether to send a cluster only the names of service accounts and nodes."""
        return ConstrainedGrant(lambda: self._reviewer(cluster, TIMES, of_the_proxy=True), self._clock.seconds)

    def _reviewer(
        self, cluster: str, settings: model.SubjectAccessReview, *, of_the_proxy: bool
    ) -> SubjectAccessReviewer:
        key = (cluster, settings.version, settings.cache_allowed, settings.cache_denied, of_the_proxy)
        live = self._live.get(key)
        if live is None:
            live = self._live[key] = SubjectAccessReviewer(
                self._current[cluster], settings, self._clock, of_the_proxy=of_the_proxy
            )
        return live


class IdentityRegistry:
    """The authenticators and authorizers of one configuration."""

    def __init__(
        self,
        config: model.Config,
        clusters: Mapping[str, Cluster],
        shared: UpstreamContext,
        previous: IdentityRegistry | None,
    ) -> None:
        """Take over the unchanged objects of `previous`, which this does not change.

        Raises CredentialError if a webhook's credential can never be sent.
        """
        self._clusters = clusters
        self._shared = shared
        known = {} if previous is None else previous._current
        self._current: dict[str, ClusterReference] = {
            name: known.get(name) or ClusterReference(cluster) for name, cluster in clusters.items()
        }
        self.reviewers: SubjectAccessReviewers = SubjectAccessReviewers(
            clusters, self._current, shared.reactor, None if previous is None else previous.reviewers
        )
        self._authentication = {authentication.name: authentication for authentication in config.authentication}
        self._authorization = {authorization.name: authorization for authorization in config.authorization}
        # By name of the authorization. Rules are compiled here, once for all servers.
        self._authorizers = {one.name: self._authorizer(one) for one in config.authorization}
        self._impersonation = {
            None if one is None else one.name: self._impersonation_authorizer(one)
            for one in (None, *config.authorization)
        }
        certificates = any(authentication.client_ca is not None for authentication in config.authentication)
        self._homes = certificate_homes(config.clusters) if certificates else {}
        self._token_unions: dict[tuple[str, str], UnionTokenAuthenticator] = {}
        self._authenticators: dict[tuple[str, str], Authenticator] = {}
        self.upstream_headers = {
            name: self._upstream_headers(cluster.config, previous) for name, cluster in clusters.items()
        }
        for server in config.servers:
            if server.authentication is not None:
                self._make_authenticator(self._key(server), previous)
        for listener in config.listeners:
            if listener.authentication is not None:
                self._make_authenticator(self._key_of_listener(listener), previous)

    def authenticator(self, server: model.Server) -> Authenticator | NoAuthentication:
        """Return the authenticator of a server."""
        key = self._key(server)
        return NO_AUTHENTICATION if key is None else self._authenticators[key]

    def authenticator_of(self, listener: model.ListenerConfig) -> Authenticator | NoAuthentication:
        """Return the authenticator of an Admin listener."""
        key = self._key_of_listener(listener)
        return NO_AUTHENTICATION if key is None else self._authenticators[key]

    def authorizer_of(self, listener: model.ListenerConfig) -> Authorizer | None:
        """Return the authorizer of an Admin listener; None: every authenticated user may use it."""
        return None if listener.authorization is None else self._authorizers[listener.authorization]

    def authorizer(self, server: model.Server) -> Authorizer | None:
        """Return the authorizer of a server; None: only the target cluster of a request authorizes it."""
        return None if server.authorization is None else self._authorizers[server.authorization]

    def impersonation(self, server: model.Server) -> ImpersonationAuthorizer:
        """Return the authorizer of impersonation requested by clients of a server."""
        return self._impersonation[server.authorization]

    def cached_read_authorizers(
        self, server: model.Server, wrapped: Callable[[ReviewersByCluster], ReviewersByCluster]
    ) -> tuple[Authorizer | None, ImpersonationAuthorizer]:
        """Return the authorizers of reads from the caches of a server's aggregate.

        They are the server's with `wrapped` reviewers, which keep the last decisions of an unavailable member.
        """
        config = self._authorization.get(server.authorization) if server.authorization is not None else None
        review = (config.subject_access_review if config is not None else None) or model.SubjectAccessReview()
        reviewers = wrapped(self.reviewers.of(review))
        authorizer = None if config is None else Authorizer.build(config, reviewers)
        return authorizer, ImpersonationAuthorizer(config, reviewers)

    def server_reviewer(self, server: model.Server) -> ServerReviewer | None:
        """Return the reviewer that answers the reviews which API servers send to a server with API services.

        None: the server's backend answers all of them.
        """
        home = server.home
        if not server.api_services or not home:
            return None
        identity = self._clusters[home].config.identity
        key = self._key(server)
        tokens = None if key is None else self._token_unions.get(key)
        authorizer = self.authorizer(server)
        if (tokens is None and authorizer is None) or (
            identity is model.UpstreamIdentity.PASSTHROUGH and server.authentication is None
        ):
            return None
        from mcproxy.identity.review_api.server_reviewer import ServerReviewer

        authentication = self._authentication.get(server.authentication or "")
        review = None if authentication is None else authentication.token_review
        authorization = self._authorization.get(server.authorization or "")
        settings = None if authorization is None else authorization.subject_access_review
        as_proxy = identity is model.UpstreamIdentity.PROXY
        return ServerReviewer(
            home=home,
            tokens=tokens,
            authorizer=authorizer,
            rights=self.reviewers.as_seen_by(settings or model.SubjectAccessReview())(home),
            services={service.group_version: service for service in server.api_services},
            audiences=() if review is None else review.audiences,
            shares_accounts=authentication is not None and authentication.share_service_accounts,
            masters=self.reviewers.system_masters_decision(home),
            as_proxy=as_proxy,
            right_needed=not as_proxy or authorization is None or settings is not None or review is not None,
        )

    def masters_grants(self, server: model.Server) -> Mapping[str, MastersGrant]:
        """Return the decisions whether to send `system:masters` to API services of a server, by the deciding cluster.

        An API server that authorizes requests itself receives the group in Impersonate-Group. So the proxy needs the
        right to impersonate the group in that API server.
        """
        deciding = {each.authority for each in server.api_services if each.authority not in ("", each.cluster)}
        return {name: self.reviewers.system_masters_decision(name) for name in sorted(deciding)}

    def _upstream_headers(
        self, cluster: model.ClusterConfig, previous: IdentityRegistry | None
    ) -> UpstreamIdentityHeaders:
        known = None if previous is None else previous.upstream_headers.get(cluster.name)
        if previous is not None and known is not None and previous._clusters[cluster.name].config != cluster:
            known = None
        return UpstreamIdentityHeaders(cluster, self.reviewers.constrained_grant(cluster.name), known)

    def loads(self) -> Iterator[tuple[str, str, ReviewLoad]]:
        """Yield for each reviewer its kind ("tokens" or "access"), its authentication or cluster, and its load."""
        for (name, _), tokens in self._token_unions.items():
            yield "tokens", name, tokens.load
        for cluster, load in self.reviewers.loads():
            yield "access", cluster, load

    def activate(self) -> None:
        """Start sending reviews to the clusters of this configuration, and prefetch the keys of issuers."""
        for name, current in self._current.items():
            current.cluster = self._clusters[name]
        for tokens in self._token_unions.values():
            tokens.start()

    def discard(self, keep: IdentityRegistry | None) -> None:
        """Stop the objects that `keep` does not share."""
        for key, tokens in self._token_unions.items():
            tokens.stop(None if keep is None else keep._token_unions.get(key))

    def _authorizer(self, config: model.Authorization) -> Authorizer:
        return Authorizer.build(config, self.reviewers.of(config.subject_access_review or model.SubjectAccessReview()))

    def _impersonation_authorizer(self, config: model.Authorization | None) -> ImpersonationAuthorizer:
        settings = (config.subject_access_review if config is not None else None) or model.SubjectAccessReview()
        return ImpersonationAuthorizer(config, self.reviewers.of(settings))

    def _key(self, server: model.Server) -> tuple[str, str] | None:
        """Return the key of a token cache: authentication and cluster that reviews tokens ("": no cluster)."""
        if server.authentication is None:
            return None
        review = self._authentication[server.authentication].token_review
        if review is None:
            return server.authentication, ""
        return server.authentication, review.cluster or server.clusters[0]

    def _key_of_listener(self, listener: model.ListenerConfig) -> tuple[str, str] | None:
        if listener.authentication is None:
            return None
        review = self._authentication[listener.authentication].token_review
        return listener.authentication, "" if review is None else review.cluster or ""  # never "" (`admin_exposure`)

    def _make_authenticator(self, key: tuple[str, str] | None, previous: IdentityRegistry | None) -> None:
        if key is None or key in self._authenticators:
            return
        name, reviewer = key
        config = self._authentication[name]
        tokens = UnionTokenAuthenticator.build(
            config,
            cluster=self._clusters[reviewer].config if reviewer else None,
            live=self._current[reviewer] if reviewer else None,
            shared=self._shared,
            previous=None if previous is None else previous._token_unions.get(key),
        )
        if tokens is not None:
            self._token_unions[key] = tokens
        self._authenticators[key] = Authenticator.build(
            config,
            tokens=tokens,
            clock=self._shared.reactor,
            homes=self._homes if config.client_ca is not None else {},
            previous=None if previous is None else previous._authenticators.get(key),
        )
