"""`mcproxy check --connect`: tests the connections to all remote systems of the configuration, with the daemon's code.

It checks endpoints as a health check does, then the proxy's rights in clusters, the hubs that listeners dial, the keys
of issuers, Redis, and the collector of spans if the environment names one. Faults are reported in the order in which
they must be repaired: addresses, certificates, the servers that answer, credentials, rights.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.defer import Deferred, DeferredSemaphore, TimeoutError, gatherResults
from twisted.internet.threads import deferToThreadPool

from mcproxy.cli import connect_pods, connect_services, connect_tunnels
from mcproxy.config import model
from mcproxy.config.problem import Problem
from mcproxy.net.causes import Cause, CauseCode, code_of

if TYPE_CHECKING:
    from mcproxy.config.loaded import Loaded
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.endpoint import Endpoint
    from mcproxy.upstream.upstream_context import UpstreamContext

T = TypeVar("T")
Work = Coroutine[Deferred[Any], Any, T]

_AT_ONCE = 16
"""The number of endpoints and servers that are tested at the same time."""
_WITHIN = 10.0
"""Timeout of the test of an endpoint or server (seconds)."""


class ConnectStep(enum.IntEnum):
    """The steps of a connection, in order. A fault in a step hides faults in later steps."""

    NETWORK = 0
    CERTIFICATE = 1
    ANSWER = 2
    CREDENTIAL = 3
    RIGHT = 4


_KINDS = {"clusters": "cluster", "ingresses": "ingress", "listeners": "listener"}
_STEPS = {"network": ConnectStep.NETWORK, "tls": ConnectStep.CERTIFICATE}
"""The step in which a check failed, by the kind of its cause's code (`CauseCode.kind`)."""
_HUB_STEPS = {401: ConnectStep.CREDENTIAL, 403: ConnectStep.RIGHT}


@dataclass(frozen=True, slots=True)
class Fault:
    """A check that failed."""

    step: ConnectStep
    problem: Problem


@dataclass(slots=True)
class Outcome:
    """The results; `faults` are in the order of repair."""

    good: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def ordered(self) -> list[Problem]:
        return [each.problem for each in sorted(self.faults, key=lambda each: each.step)]


def step_of(cause: str) -> ConnectStep:
    """Return the step in which a connection or request failed, by the code of its cause."""
    return _STEPS.get(code_of(cause).kind, ConnectStep.ANSWER)


def run(loaded: Loaded) -> Outcome:
    """Run all checks. Runs its own reactor and blocks, so it can be called only once in a process."""
    from mcproxy.net.reactor import install

    reactor: Any = install()
    outcome = Outcome()
    failed: list[Any] = []

    def begin() -> None:
        work = Deferred.fromCoroutine(ConnectChecks(reactor, loaded, outcome).run())
        work.addErrback(failed.append).addBoth(lambda _: reactor.stop())

    reactor.callWhenRunning(begin)
    reactor.run()
    if failed:
        failed[0].raiseException()
    return outcome


class ConnectChecks:
    """Runs the connection checks of one configuration."""

    def __init__(self, reactor: Any, loaded: Loaded, outcome: Outcome) -> None:
        self._reactor = reactor
        self._loaded = loaded
        self._outcome = outcome
        self._places = DeferredSemaphore(_AT_ONCE)
        self._pods = connect_pods.Pods()

    async def run(self) -> None:
        """Run all checks."""
        from mcproxy.daemon.runtime import make_upstream_context
        from mcproxy.http.deadlines import Deadlines
        from mcproxy.observe import tracing

        deadlines = Deadlines(self._reactor)
        shared = make_upstream_context(self._reactor, deadlines, lambda endpoint: None)
        config = self._loaded.config
        try:
            work: list[Work[None]] = [self._cluster(cluster, shared) for cluster in config.clusters]
            work += [self._issuer(name, issuer, shared) for name, issuer in _issuers(config)]
            work += [
                self._webhook(authentication.name, authentication.webhook, shared)
                for authentication in config.authentication
                if authentication.webhook is not None
            ]
            work += [
                self._hub(listener.name, url, listener.dial, shared)
                for listener in config.listeners
                if listener.dial is not None
                for url in listener.dial.urls
            ]
            if config.daemon.shared_state is not None:
                work.append(self._redis(config.daemon.shared_state.redis))
            if tracing.configured(os.environ):
                work.append(self._collector())
            await gatherResults([Deferred.fromCoroutine(each) for each in work])
            await self._pod_networks()
        finally:
            deadlines.stop()
            shared.close()

    # -- clusters -----------------------------------------------------------------------------------------------------

    async def _cluster(self, config: model.ClusterConfig, shared: UpstreamContext) -> None:
        from mcproxy.identity.required_rights import has_own_reviews
        from mcproxy.upstream.cluster import Cluster
        from mcproxy.upstream.credentials import CredentialError

        try:
            cluster = Cluster.build(config, shared)
        except CredentialError as error:
            self._fault(
                ConnectStep.CREDENTIAL, config.name, "credentials", error.cause, "give it a credential that can be sent"
            )
            return
        try:
            authorization: bytes | None = None
            try:
                source = cluster.credentials
                if not source.is_ready:
                    await Deferred.fromCoroutine(source.ready()).addTimeout(_WITHIN, self._reactor)
                authorization = source.authorization()
            except CredentialError as error:
                self._fault(ConnectStep.CREDENTIAL, config.name, "credentials", error.cause, "mend the credential")
            except TimeoutError:
                what = f"there is no credential within {_WITHIN:g} s"
                self._fault(
                    ConnectStep.CREDENTIAL, config.name, "credentials", what, "see what the exec plugin waits for"
                )
            tried = [self._in_place(self._endpoint(cluster, each, authorization)) for each in cluster.endpoints]
            refused = [each for each in await gatherResults(tried) if each]
            missing = False
            asked = config.credentials != model.Credentials() and has_own_reviews(self._loaded.config, config)
            if asked and any(endpoint.ready for endpoint in cluster.endpoints):
                missing = await self._rights(cluster)
            known = (
                config.credentials != model.Credentials() or config.identity is model.UpstreamIdentity.REQUEST_HEADER
            )
            if known and any(endpoint.ready for endpoint in cluster.endpoints):
                await self._api_services(cluster)
                await self._slices(cluster)
            for what, right in refused:
                if not missing:
                    self._fault(ConnectStep.RIGHT, config.name, "credentials", what, right)
        finally:
            cluster.stop()

    async def _endpoint(
        self, cluster: Cluster, endpoint: Endpoint, authorization: bytes | None
    ) -> tuple[str, str] | None:
        """Test an endpoint; return the cause if it refuses the proxy's credential (403)."""
        from mcproxy.net.connect_errors import ConnectError
        from mcproxy.upstream.health_check import CheckError, failure_message, get_health
        from mcproxy.upstream.remedies import remedy

        config = cluster.config
        if endpoint.config.tunnel is not None:
            what = (
                f"cluster {config.name}: endpoint {endpoint.name} is behind tunnel {endpoint.config.tunnel}, which only"
            )
            self._outcome.notes.append(f"{what} the running daemon has; `mcproxy status` shows both")
            return None
        path, begun = config.health_check.path, self._reactor.seconds()
        status = 0
        cause: str | None
        try:
            asking = get_health(endpoint, path, authorization, self._reactor, timeout=_WITHIN, new_connection=True)
            status, body = await Deferred.fromCoroutine(asking).addTimeout(_WITHIN, self._reactor)
            cause = failure_message(status, body, path)
            if status == 404 and path == "/readyz":
                asking = get_health(
                    endpoint, "/healthz", authorization, self._reactor, timeout=_WITHIN, new_connection=True
                )
                status, body = await Deferred.fromCoroutine(asking).addTimeout(_WITHIN, self._reactor)
                cause = failure_message(status, body, "/healthz")
        except TimeoutError:
            cause = Cause(f"no answer on {path} within {_WITHIN:g} s", CauseCode.NO_ANSWER)
        except (ConnectError, CheckError) as error:
            cause = error.cause
        name = endpoint.name if endpoint.name == endpoint.config.url else f"{endpoint.name} ({endpoint.config.url})"
        has_credential = config.credentials != model.Credentials()
        if cause is not None and status in (401, 403) and not has_credential:
            cause = None  # the endpoint has answered; without a credential the proxy cannot check more
        if cause is None or status == 403:
            endpoint.record_check(None)
        if cause is None:
            verified = (
                ""
                if endpoint.config.scheme != "https"
                else (
                    "its certificate is not verified, "
                    if config.tls.insecure_skip_verify
                    else "chain and name are good, "
                )
            )
            took = (self._reactor.seconds() - begun) * 1000
            self._outcome.good.append(f"cluster {config.name}: {name}: {verified}answered {status} in {took:.0f} ms")
            return None
        todo = remedy(cause, endpoint.keys)
        what = f"endpoint {name}: {cause}"
        if endpoint.config.disabled:
            self._outcome.notes.append(f"cluster {config.name}: {what}; it is disabled")
            return None
        if status == 403:
            return what, todo
        step = ConnectStep.CREDENTIAL if status == 401 else step_of(cause)
        key = {ConnectStep.CERTIFICATE: "tls", ConnectStep.CREDENTIAL: "credentials"}.get(step, "endpoints")
        self._fault(step, config.name, key, what, todo)
        return None

    async def _rights(self, cluster: Cluster) -> bool:
        """Check the rights that the configuration needs in a cluster; return whether one is missing."""
        from mcproxy.daemon.rights_check import describe_right
        from mcproxy.identity.required_rights import required_rights, rights_by_cluster
        from mcproxy.identity.reviewer_log import UnavailableError
        from mcproxy.identity.self_access_review import missing_rights

        name = cluster.name
        config = self._loaded.config
        rights = rights_by_cluster(config)[name]
        missing: dict[str, list[str]] = {}
        try:
            in_modes = partial(required_rights, config, cluster.config, constrained=True)
            lacking, modes = await missing_rights(cluster, rights, in_modes, self._reactor)
            for right in lacking:
                missing.setdefault(right.why, []).append(describe_right(right))
        except UnavailableError as error:
            what = f"its rights cannot be queried: {error.cause}"
            self._fault(
                ConnectStep.CREDENTIAL if error.kind == "401" else ConnectStep.RIGHT,
                name,
                "credentials",
                what,
                error.todo,
            )
            return True
        for why, described in missing.items():
            what = f"the cluster does not grant the proxy {', '.join(described)} ({why})"
            todo = f"grant it what `mcproxy rbac --cluster {name}{' --constrained' if modes else ''}` prints"
            self._fault(ConnectStep.RIGHT, name, "credentials", what, todo)
        if modes:
            self._outcome.warnings += _warnings_of_modes(cluster.config)
        if rights and not missing:
            number = len(in_modes()) if modes else len(rights)
            self._outcome.good.append(f"cluster {name}: grants the proxy all {number} rights that it needs")
        return bool(missing)

    async def _slices(self, cluster: Cluster) -> None:
        """Read the used services of a cluster and their endpoints. Refusals are reported with the rights."""
        from mcproxy.net.connect_errors import ConnectError
        from mcproxy.upstream.control import ControlError
        from mcproxy.upstream.credentials import CredentialError

        with contextlib.suppress(ConnectError, ControlError, CredentialError):
            await connect_pods.read(cluster, self._loaded.config, self._pods)

    async def _pod_networks(self) -> None:
        """Report backends without a Service or port, unreachable pods, and overlapping networks."""
        from mcproxy.services.endpoint_table import EndpointState

        self._outcome.warnings += self._pods.overlaps()
        for ingress, key, direct in connect_pods.backends_of(self._loaded.config):
            found = self._pods.endpoints(key)
            if found.problem:
                right = "see the Service in that cluster, and the backend in the file"
                self._fault(ConnectStep.ANSWER, ingress, "", found.problem, right, section="ingresses")
            ready = [each for each in found.endpoints if each.state is EndpointState.READY]
            if not direct or not ready:
                continue  # no pod is ready, or the cluster is unreachable
            service = f"{key.namespace}/{key.service}"
            reached, tried = await connect_pods.reach(self._reactor, ready)
            if reached:
                self._outcome.good.append(f"cluster {key.cluster}: a pod of {service} can be reached at {tried}")
            else:
                self._outcome.warnings.append(
                    f"ingress {ingress}, cluster {key.cluster}: no pod of {service} can be reached from here ({tried});"
                    " route the cluster's pod network to this machine, or write via: PortForward"
                )

    async def _api_services(self, cluster: Cluster) -> None:
        """Query a cluster for its registered group-versions, and for group-versions that API services hide."""
        from mcproxy.net.connect_errors import ConnectError
        from mcproxy.upstream.control import ControlError
        from mcproxy.upstream.credentials import CredentialError
        from mcproxy.upstream.remedies import TRUST_FRONT_PROXY, shows_front_proxy_alone

        config = self._loaded.config
        try:
            for group_version in connect_services.owned_by(config, cluster.name):
                response = await connect_services.answer(cluster, group_version)
                status = response.status
                what = f"answered {status} to GET /apis/{group_version}"
                if status == 200:
                    unreadable = connect_services.unreadable(response, group_version)
                    if unreadable:
                        what += f", which is not its discovery document: {unreadable}"
                        self._fault(
                            ConnectStep.ANSWER, cluster.name, "endpoints", what, "see what answers there, and its log"
                        )
                    else:
                        self._outcome.good.append(f"cluster {cluster.name}: serves {group_version}")
                elif status == 401 and shows_front_proxy_alone(cluster.config):
                    self._fault(ConnectStep.CREDENTIAL, cluster.name, "frontProxy", what, TRUST_FRONT_PROXY)
                elif status in (401, 403):
                    todo = "grant the proxy's user what `mcproxy rbac` prints for it, where the API server asks for it"
                    self._fault(ConnectStep.RIGHT, cluster.name, "credentials", what, todo)
                else:
                    what = f"is registered for {group_version}, and {what}"
                    self._fault(ConnectStep.ANSWER, cluster.name, "endpoints", what, "see what the API server serves")
            for server, service in connect_services.hidden_in(config, cluster.name):
                if (await connect_services.answer(cluster, service.group_version)).status == 200:
                    what = connect_services.describe_hidden(self._loaded, server, service, cluster.name)
                    self._outcome.warnings.append(what)
        except (ConnectError, ControlError, CredentialError) as error:
            what = f"its API services cannot be queried: {error.cause}"
            self._fault(ConnectStep.ANSWER, cluster.name, "endpoints", what, "see the log of the API server")

    # -- hubs ---------------------------------------------------------------------------------------------------------

    async def _hub(self, name: str, url: str, dial: model.Dial, shared: UpstreamContext) -> None:
        """Test a hub that a listener dials."""
        from mcproxy.net.connect_errors import ConnectError
        from mcproxy.upstream.control import ControlError
        from mcproxy.upstream.credentials import CredentialError
        from mcproxy.upstream.remedies import keys_of_hub, remedy

        try:
            found = await self._in_place(connect_tunnels.ask(url, dial, shared, _WITHIN))
        except CredentialError as error:
            what = f"hub {url}: {error.cause}"
            self._fault(ConnectStep.CREDENTIAL, name, "dial", what, "mend the credential", section="listeners")
        except (ConnectError, ControlError) as error:
            todo = remedy(error.cause, keys_of_hub(dial))
            self._fault(step_of(error.cause), name, "dial", f"hub {url}: {error.cause}", todo, section="listeners")
        else:
            what = f"hub {url}: {found.what}"
            if found.todo:
                self._fault(
                    _HUB_STEPS.get(found.status, ConnectStep.ANSWER),
                    name,
                    "dial",
                    what,
                    found.todo,
                    section="listeners",
                )
            else:
                self._outcome.good.append(f"listener {name}: hub {url}: chain and name are good, {found.what}")

    # -- others -------------------------------------------------------------------------------------------------------

    async def _issuer(self, name: str, config: model.OIDC, shared: UpstreamContext) -> None:
        from mcproxy.identity.authentication.oidc.key_source import fetch_keys
        from mcproxy.identity.reviewer_log import UnavailableError, shown

        try:
            keys = await self._in_place(fetch_keys(config, shared))
        except UnavailableError as error:
            step = step_of(error.cause) if error.kind == "connection" else ConnectStep.ANSWER
            what = f"issuer {shown(config.issuer)}: {error.cause}"
            self._fault(step, name, "oidc", what, error.todo, section="authentication")
            return
        self._outcome.good.append(f"authentication {name}: issuer {shown(config.issuer)}: has {len(keys)} keys")

    async def _webhook(self, name: str, config: model.Webhook, shared: UpstreamContext) -> None:
        from mcproxy.net.connect_errors import ConnectError
        from mcproxy.upstream.control import ControlError
        from mcproxy.upstream.credentials import CredentialError
        from mcproxy.upstream.external_server import ExternalServer
        from mcproxy.upstream.remedies import of_kubeconfig, remedy

        url = config.endpoint.url
        try:
            server = ExternalServer(
                name,
                config.endpoint,
                tls=config.tls,
                credentials=config.credentials,
                proxy=config.proxy,
                context=shared,
            )
            try:
                asking = server.request("GET", config.endpoint.path or "/", timeout=_WITHIN, max_body=1024 * 1024)
                status = (await asking).status
            finally:
                server.close()
        except CredentialError as error:
            self._fault(ConnectStep.CREDENTIAL, name, "webhook", error.cause, "mend it", section="authentication")
        except (ConnectError, ControlError) as error:
            keys = of_kubeconfig(config.kubeconfig, "the webhook")
            what = f"webhook {url}: {error.cause}"
            self._fault(
                step_of(error.cause), name, "webhook", what, remedy(error.cause, keys), section="authentication"
            )
        else:
            self._outcome.good.append(f"authentication {name}: webhook {url}: answered {status} to a GET")

    async def _redis(self, config: model.RedisConfig) -> None:
        from mcproxy.dispatch.replicas.redis_client import RedisEngine, RedisUnavailable
        from mcproxy.dispatch.replicas.script import leaving
        from mcproxy.dispatch.tables.limit_shares import LimitId

        def ask() -> None:
            engine = RedisEngine(config)
            try:
                engine.call([leaving(config.prefix, LimitId("check", "short", model.Per.ALL), "check")])
            finally:
                engine.close()

        try:
            await deferToThreadPool(self._reactor, self._reactor.getThreadPool(), ask)
        except RedisUnavailable as error:
            place = self._loaded.location("daemon", "sharedState")
            assert place is not None
            problem = Problem(place.mark, place.key, str(error), error.todo)
            self._outcome.faults.append(Fault(step_of_redis(str(error)), problem))
        else:
            self._outcome.good.append(f"Redis {config.url}: runs the script that counts limits over replicas")

    async def _collector(self) -> None:
        """Test the collector of spans. A fault is only a warning, as requests do not depend on it."""
        from mcproxy.observe import tracing

        collector = f"collector {tracing.endpoint_of(os.environ)}"
        try:
            await deferToThreadPool(
                self._reactor, self._reactor.getThreadPool(), tracing.try_collector, dict(os.environ)
            )
        except tracing.TracingUnavailable as error:
            self._outcome.warnings.append(f"{collector}: requests are not traced: {error.cause}; {error.todo}")
        else:
            self._outcome.good.append(f"{collector}: accepts spans")

    # -- outcomes -----------------------------------------------------------------------------------------------------

    def _in_place(self, work: Work[T]) -> Deferred[T]:
        return self._places.run(Deferred.fromCoroutine, work)

    def _fault(
        self, step: ConnectStep, name: str, key: str, what: str, right: str, *, section: str = "clusters"
    ) -> None:
        location = self._loaded.location(section, name, key)
        assert location is not None, (section, name)
        what = f"{_KINDS.get(section, section)} {name}: {what}"
        self._outcome.faults.append(Fault(step, Problem(location.mark, location.key, what, right)))


def _warnings_of_modes(cluster: model.ClusterConfig) -> Iterator[str]:
    """Yield warnings about users that constrained impersonation refuses despite any grant (KEP-5284)."""
    from mcproxy.identity.constrained_rights import refused_extras
    from mcproxy.kube.constrained_impersonation import MASTERS

    lead = f"cluster {cluster.name}: lets the proxy name users by constrained impersonation alone, which refuses"
    yield f"{lead} requests of users in the group {MASTERS}"
    refused = refused_extras(cluster)
    if refused:
        yield f"{lead} extras without a domain (impersonateExtras): {', '.join(refused)}"


def step_of_redis(cause: str) -> ConnectStep:
    """Return the step in which a connection to Redis failed."""
    lower = cause.lower()
    if "certificate" in lower or "ssl" in lower or "tls" in lower:
        return ConnectStep.CERTIFICATE
    if "password" in lower or "auth" in lower or "user" in lower:
        return ConnectStep.CREDENTIAL
    if "permission" in lower or "noperm" in lower:
        return ConnectStep.RIGHT
    return ConnectStep.NETWORK


def _issuers(config: model.Config) -> Iterator[tuple[str, model.OIDC]]:
    for authentication in config.authentication:
        for oidc in authentication.oidc:
            if oidc.jwks is None:
                yield authentication.name, oidc
