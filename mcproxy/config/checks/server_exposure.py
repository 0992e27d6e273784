"""Checks which clients get access through servers, and with whose rights.

The checks combine servers, sets of authenticators, authorizers and clusters. Each error is reported at the value to
change. Entries with errors are skipped, since they were reported before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mcproxy.certificate_blocks import load_certificates
from mcproxy.config import credential_checks
from mcproxy.config.checks.broad_rules import warn_of_broad_rules
from mcproxy.config.model import (
    AggregateBackendConfig,
    Authentication,
    Authorization,
    ClusterConfig,
    ListenerConfig,
    ReadAuthorization,
    RequestHeader,
    Server,
    SystemdBind,
    TunnelsBackend,
    UpstreamIdentity,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.authentication_section import NONE, TOKEN_AUTHENTICATORS
from mcproxy.config.sections.entries import Named, Sections
from mcproxy.config.suggestions import suggest
from mcproxy.config.urls import is_open

T = TypeVar("T")

_KEY_FORMAT = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
_SHOWN = 3  # names in a message
_NOBODY = ("*", "system:anonymous", "system:unauthenticated")

_NO_SET = "define it in the section authentication, or write none, for no authentication"
_NO_AUTHORIZER = "define it in the section authorization, or leave it out: the clusters alone decide then"


def check(context: Context, sections: Sections) -> None:
    """Report every error and warning that concerns several sections."""
    servers = sections.servers.values
    checker = _Checker(
        context,
        sections.listeners.by_name,
        sections.clusters.by_name,
        sections.authentication.by_name,
        sections.authorization.by_name,
        servers,
    )
    for place, server in sections.servers.valid:
        checker.server(place, server)
    checker.reviews()
    checker.shared_token_reviews()
    checker.shared_system_names()
    by_server = {each.name for each in sections.aggregates.values if each.reads.authorize is ReadAuthorization.SERVER}
    alone = {
        server.authorization for server in servers if checker.proxied_cluster(server) or _aggregate(server) in by_server
    }
    warn_of_broad_rules(context, sections.authorization, alone)
    checker.unused([entry.place for entry in sections.servers])


def _aggregate(server: Server) -> str | None:
    return server.backend.aggregate if isinstance(server.backend, AggregateBackendConfig) else None


@dataclass(frozen=True, slots=True)
class _Checker:
    context: Context
    listeners: Mapping[str, Named[ListenerConfig]]
    clusters: Mapping[str, Named[ClusterConfig]]
    sets: Mapping[str, Named[Authentication]]
    authorizers: Mapping[str, Named[Authorization]]
    servers: Sequence[Server]

    # -- servers --------------------------------------------------------------------------------------------------

    def server(self, place: Place, server: Server) -> None:
        self._known_set(place.get("authentication"))
        self._known_authorizer(place.get("authorization"))
        self._unusable_certificates(place, server)
        self._token_review(place, server)
        if isinstance(server.backend, TunnelsBackend):
            return  # `checks.tunnel_use` has the rest
        self._missing_authentication(place, server)
        self._users_without_authentication(place, server)
        self._missing_authorization(place, server)
        self._access_review(place, server)
        self._impersonation(place, server)

    def _known_set(self, place: Place | None) -> None:
        name = place.string if place is not None else None
        if place is None or name is None or name == NONE or name in self.sets:
            return
        right = suggest(name, [*self.sets, NONE]) if self.sets or name.lower() == NONE else _NO_SET
        self.context.error(place, f"there is no set of authenticators {place.shown}", right)

    def _known_authorizer(self, place: Place | None) -> None:
        name = place.string if place is not None else None
        if place is None or name is None or (name in self.authorizers and name != NONE):
            return
        if name == NONE:
            self.context.error(place, "none is not an authorizer", "leave it out: the clusters alone decide then")
        else:
            right = suggest(name, self.authorizers) if self.authorizers else _NO_AUTHORIZER
            self.context.error(place, f"there is no authorizer {place.shown}", right)

    def _open_listener(self, server: Server) -> ListenerConfig | None:
        found = (self.listeners[name].value for name in server.listeners if name in self.listeners)
        return next((listener for listener in found if listener is not None and is_open(listener.bind)), None)

    def _dialling_listener(self, server: Server) -> ListenerConfig | None:
        found = (self.listeners[name].value for name in server.listeners if name in self.listeners)
        return next((listener for listener in found if listener is not None and listener.dial is not None), None)

    def proxied_cluster(self, server: Server) -> str | None:
        """Return a cluster in which clients of the server have the proxy's own rights."""
        for name in server.reached_clusters:
            cluster = self.clusters[name].value if name in self.clusters else None
            if cluster is not None and cluster.identity is UpstreamIdentity.PROXY:
                return name
        return None

    def _users_without_authentication(self, place: Place, server: Server) -> None:
        """Report users and groups in policies of a server without authentication, because no request matches them."""
        written = place.get("authentication")
        if (place.has("authentication") and (written is None or written.string != NONE)) or (
            written is None and self._open_listener(server) is not None  # already reported
        ):
            return
        for policy in place.children("dispatch"):
            for rule in policy.children("rules"):
                for key in ("users", "userGroups", "serviceAccounts"):
                    if any(item.string not in _NOBODY for item in rule.children(key)):
                        what = "the server has no authentication: every user is system:anonymous"
                        right = "name a set in the authentication of the server, or take it out"
                        self.context.error(rule.get(key) or rule, what, right)

    def _missing_authentication(self, place: Place, server: Server) -> None:
        listener = self._open_listener(server)
        if place.has("authentication") or listener is None:
            return
        proxied = self.proxied_cluster(server)
        if proxied:
            named, rights = "a set of authenticators and an authorizer", f", with {_rights(proxied)}"
        else:
            named, rights = "a set of authenticators", ""
        what = f"has no authentication, and {_reach(listener)}"
        if listener.dial is not None:
            right = f"name {named}, such as one with requestHeader: {{listeners: [{listener.name}], hubUser: NAME}}"
        else:
            right = f"name {named}, or write authentication: none, to let in whoever can connect{rights}"
        self.context.error(place, what, right)

    def _missing_authorization(self, place: Place, server: Server) -> None:
        """Require an authorizer if requests have the proxy's own rights, because authentication alone is not enough.

        Over a tunnel no authentication at all is an error then, and a missing authorizer a warning in other cases.
        """
        listener, proxied = self._open_listener(server), self.proxied_cluster(server)
        dialling = self._dialling_listener(server)
        written = place.get("authentication")
        if proxied is not None and dialling is not None and written is not None and written.string == NONE:
            what = f"{_reach(dialling)}: without authentication its clients have {_rights(proxied)}"
            self.context.error(written, what, "name a set of authenticators and an authorizer")
        if server.authentication not in self.sets or place.has("authorization") or listener is None:
            return
        if proxied is None:
            if dialling is not None:
                what = f"has no authorization, and {_reach(dialling)}"
                right = "name an authorizer: without one the hub may do here all that the edge's credentials allow"
                self.context.warn(place, "no-authorization", what, right)
            return
        accepted = f"every user whom {server.authentication} accepts has {_rights(proxied)}"
        what = f"has no authorization, so {accepted}, and {_reach(listener)}"
        self.context.error(place, what, "name an authorizer in authorization")

    def _unusable_certificates(self, place: Place, server: Server) -> None:
        """Warn if only client certificates are accepted, or hubs, but no listener has TLS or a trusted hub."""
        found = self.sets.get(server.authentication or "")
        listeners = [self.listeners[name].value for name in server.listeners if name in self.listeners]
        if found is None or found.value is None or not listeners:
            return
        others = (found.value.anonymous.enabled, *(found.place.has(key) for key in TOKEN_AUTHENTICATORS))
        header, written = found.value.request_header, found.place.get("requestHeader")
        if written is not None and (header is None or written.is_broken):
            return  # it was reported
        if header is not None and header.listeners:
            self._unreachable_hubs(place, server, header, is_only=not any(others) and found.value.client_ca is None)
            return
        if not any(others) and all(listener is not None and listener.tls is None for listener in listeners):
            cause = "without tls on a listener no client can send one"
            right = "add tls to a listener, or use another set"
            if all(listener is not None and listener.dial is not None for listener in listeners):
                cause, right = "over a tunnel none is sent", "use a set with requestHeader.listeners, or with tokens"
            what = f"{found.name} accepts client certificates alone, and {cause}"
            self.context.warn(place.get("authentication") or place, "unreachable-set", what, right)

    def _unreachable_hubs(self, place: Place, server: Server, header: RequestHeader, *, is_only: bool) -> None:
        """Warn if a set accepts hubs alone (`is_only`), and the server is on none of their listeners."""
        if is_only and header.ca is None and not set(header.listeners) & set(server.listeners):
            what = (
                f"{server.authentication} accepts hubs of {_some(header.listeners)} alone, and this server is not there"
            )
            right = "name such a listener in listeners, or use another set"
            self.context.warn(place.get("authentication") or place, "unreachable-set", what, right)

    def _token_review(self, place: Place, server: Server) -> None:
        """Check a tokenReview without cluster: it needs a server with one cluster, and credentials for that cluster."""
        where, clusters = place.get("authentication"), server.clusters
        known = clusters or isinstance(
            server.backend, AggregateBackendConfig | TunnelsBackend
        )  # otherwise the backend is invalid; that was reported
        if where is None or not known or not leaves_out_cluster(self.sets.get(where.string or ""), "tokenReview"):
            return
        if len(clusters) != 1:
            what = f"{where.string} has a tokenReview without cluster, and this server has {len(clusters) or 'none'}"
            self.context.error(where, what, "name the cluster in the tokenReview, or use another set here")
        else:
            self._require_credentials(clusters[0], where, "tokenReview", "tokenreviews")

    def _access_review(self, place: Place, server: Server) -> None:
        """Check a subjectAccessReview without cluster: the proxy needs credentials for each cluster."""
        where = place.get("authorization")
        if where is None or not leaves_out_cluster(self.authorizers.get(where.string or ""), "subjectAccessReview"):
            return
        for name in server.reviewing_clusters:
            self._require_credentials(name, where, "subjectAccessReview", "subjectaccessreviews")

    def _require_credentials(self, cluster: str, where: Place, review: str, resource: str) -> None:
        if self._without_credentials(cluster):
            what = f"the {review} of {where.string} asks cluster {cluster}, which has no credentials"
            self.context.error(where, what, f"give cluster {cluster} credentials that may create {resource}")

    def _impersonation(self, place: Place, server: Server) -> None:
        """Warn if the proxy must review impersonation in a Passthrough cluster for which it has no credentials.

        The proxy authenticates the client, so it must request the impersonation review with its own credentials.
        If the same cluster also reviews requests, missing credentials are already an error.
        """
        where = place.get("authentication")
        if where is None or server.authentication not in self.sets:
            return
        if place.has("authorization"):
            found = self.authorizers.get(server.authorization or "")
            review = found.value.subject_access_review if found is not None and found.value is not None else None
            if review is None or review.cluster is None:
                return
        for name in server.reviewing_clusters:
            if self._identity(name) is UpstreamIdentity.PASSTHROUGH and self._without_credentials(name):
                what = f"impersonation requested by clients is 503: cluster {name} reviews it, and has no credentials"
                right = f"give cluster {name} credentials that may do so, or name an authorizer of rules alone"
                self.context.warn(where, "no-credentials", what, right)

    def _identity(self, name: str) -> UpstreamIdentity | None:
        found = self.clusters.get(name)
        return found.value.identity if found is not None and found.value is not None else None

    def _without_credentials(self, name: str) -> bool:
        """Whether the proxy lacks credentials for a cluster, unless that is reported as an error of the cluster."""
        found = self.clusters.get(name)
        if found is None or found.value is None or found.value.identity is UpstreamIdentity.IMPERSONATE:
            return False
        return credential_checks.is_anonymous(found.place, found.value)

    def shared_token_reviews(self) -> None:
        """Warn if a server accepts tokens that one cluster reviews for other clusters, too."""
        for name, entry in self.sets.items():
            review = entry.value.token_review if entry.value is not None else None
            place = entry.place.get("tokenReview")
            if review is None or review.cluster not in self.clusters or place is None:
                continue
            others = [cluster for cluster in self._reviewing(name) if cluster != review.cluster]
            if others:
                what = (
                    f"cluster {review.cluster} authenticates its tokens, and they are accepted for {_some(others)} too"
                )
                right = "use a set of authenticators for each cluster, where the same name may be another user"
                self.context.warn(place.get("cluster") or place, "shared-token-review", what, right)

    def shared_system_names(self) -> None:
        """Warn of client certificates whose `system:` names are accepted for several clusters.

        Names signed by one cluster's authority are accepted for that cluster only, names signed by any other authority
        for all clusters. Source: reference "identity", Authenticators.
        """
        read: dict[bytes, frozenset[bytes]] = {}
        owners: dict[bytes, list[str]] = {}
        for name, entry in self.sets.items():
            ca = entry.value.client_ca if entry.value is not None else None
            place = entry.place.get("clientCertificates")
            if ca is None or place is None or (entry.value is not None and entry.value.cluster_ca):
                continue
            receiving = [cluster for cluster in self._reviewing(name) if self._receives_users(cluster)]
            if len(receiving) < 2:
                continue
            if not owners:
                owners = self._owners_of_authorities(read)
            named = {
                cluster
                for key in _keys_of_authorities(ca.data, read)
                if len(users := [each for each in receiving if each in owners.get(key, receiving)]) > 1
                for cluster in users
            }
            if named:
                shown = _some([cluster for cluster in receiving if cluster in named])
                what = f"names beginning with system: in certificates of this authority are valid in clusters {shown}"
                right = "name in clusterCA whose authority it is, or use a set of authenticators for each cluster"
                self.context.warn(place.get("caFile") or place, "shared-system-names", what, right)

    def _reviewing(self, name: str) -> list[str]:
        """Return the reviewing clusters of the servers that use a set of authenticators."""
        users = (server for server in self.servers if server.authentication == name)
        return list(dict.fromkeys(cluster for server in users for cluster in server.reviewing_clusters))

    def _receives_users(self, name: str) -> bool:
        cluster = self.clusters[name].value if name in self.clusters else None
        return cluster is not None and cluster.identity in (
            UpstreamIdentity.IMPERSONATE,
            UpstreamIdentity.REQUEST_HEADER,
        )

    def _owners_of_authorities(self, read: dict[bytes, frozenset[bytes]]) -> dict[bytes, list[str]]:
        """Return the names of clusters by the authorities in their `tls.caFile` (`_keys_of_authorities`)."""
        found: dict[bytes, list[str]] = {}
        for name, entry in self.clusters.items():
            if entry.value is not None and entry.value.tls.ca is not None:
                for key in _keys_of_authorities(entry.value.tls.ca.data, read):
                    found.setdefault(key, []).append(name)
        return found

    # -- sets and authorizers ---------------------------------------------------------------------------------------

    def reviews(self) -> None:
        """Check that the proxy has credentials for the clusters that reviews name."""
        for section, key, resource in (
            (self.sets, "tokenReview", "tokenreviews"),
            (self.authorizers, "subjectAccessReview", "subjectaccessreviews"),
        ):
            for place in _reviewers((entry.place for entry in section.values()), key):
                name = place.string or ""
                if self._without_credentials(name):
                    what = f"cluster {name} has no credentials, so it cannot review"
                    self.context.error(place, what, f"give it credentials that may create {resource}")

    def unused(self, servers: Sequence[Place]) -> None:
        places = [*servers, *(listener.place for listener in self.listeners.values())]
        for section, key in ((self.sets, "authentication"), (self.authorizers, "authorization")):
            used = {place.text(key) for place in places}
            faulty = any(place.has(key) and place.get(key) is None for place in places)
            for name, entry in section.items():
                if name not in used and name != NONE and not faulty:
                    self.context.warn(entry.place, "unused", "no server uses it", f"name it in the {key} of a server")


def leaves_out_cluster(entry: Named[T] | None, review: str) -> bool:
    """Return whether an entry has this review without a cluster, so that the target cluster of a request reviews."""
    written = entry.place.get(review) if entry is not None and entry.value is not None else None
    return written is not None and not written.has("cluster")


def _reviewers(entries: Iterable[Place], key: str) -> Iterator[Place]:
    """Yield the places of clusters that reviews name."""
    for entry in entries:
        review = entry.get(key)
        cluster = review.get("cluster") if review is not None else None
        if cluster is not None:
            yield cluster


def _reach(listener: ListenerConfig) -> str:
    if listener.dial is not None:
        return f"the hub that listener {listener.name} dials reaches it"
    known = "may be" if isinstance(listener.bind, SystemdBind) else "is"
    return f"listener {listener.name} ({listener.bind}) {known} open beyond this machine"


def _rights(proxied: str) -> str:
    return f"the proxy's own rights (cluster {proxied} has identity: Proxy)"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def _keys_of_authorities(pem: bytes, read: dict[bytes, frozenset[bytes]]) -> frozenset[bytes]:
    """Return subject and key of each authority of a bundle; the empty set for an invalid bundle (reported).

    `read` caches the results by `pem`, because many clusters can have the same file.
    """
    if pem not in read:
        try:
            certificates = load_certificates(pem)
            read[pem] = frozenset(
                each.subject.public_bytes() + each.public_key().public_bytes(*_KEY_FORMAT) for each in certificates
            )
        except (ValueError, UnsupportedAlgorithm):
            read[pem] = frozenset()
    return read[pem]
