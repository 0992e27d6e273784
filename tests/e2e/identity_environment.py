"""Two simulated clusters behind a proxy that authenticates; one of them is reached by every kind of identity."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kubesim.auth.certificates import Authority
from tests.e2e.http_client import Address, ask
from tests.e2e.processes import Daemon, Kubectl
from tests.identity import issuer
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.environment import PUBLIC_LISTENER, kubeconfig_of
from tests.support.ports import reserved_port

DOMAIN = "identity.test"
ACCOUNT_ISSUER = "https://kubernetes.default.svc.cluster.local"
CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
BY_CERTIFICATE = ("admin-certificate", "alice-certificate", "mcproxy-certificate")
BY_TOKEN = ("admin-token", "alice-token")

CONFIG = (
    """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 5s}}
"""
    + PUBLIC_LISTENER
    + """\
clusters:
  - name: east
    endpoints: [{{url: "{east}"}}]
    tls: {{caFile: "{east_ca}"}}
    credentials: {{certFile: "{east_directory}/mcproxy.crt", keyFile: "{east_directory}/mcproxy.key"}}
    impersonateExtras: [scopes]
  - name: token
    endpoints: [{{url: "{east}"}}]
    tls: {{caFile: "{east_ca}"}}
    credentials: {{token: mcproxy-test-token}}
    impersonateExtras: [authentication.kubernetes.io/credential-id, scopes]
  - name: front
    endpoints: [{{url: "{east}"}}]
    tls: {{caFile: "{east_ca}"}}
    credentials: {{token: mcproxy-test-token}}
    identity: RequestHeader
    frontProxy: {{certFile: "{east_directory}/front-proxy.crt", keyFile: "{east_directory}/front-proxy.key"}}
  - name: own
    endpoints: [{{url: "{east}"}}]
    tls: {{caFile: "{east_ca}"}}
    credentials: {{token: mcproxy-test-token}}
    identity: Passthrough
  - name: lent
    endpoints: [{{url: "{east}"}}]
    tls: {{caFile: "{east_ca}"}}
    credentials: {{token: mcproxy-test-token}}
    identity: Proxy
  - name: west
    endpoints: [{{url: "{west}"}}]
    tls: {{caFile: "{west_ca}"}}
    credentials: {{token: mcproxy-test-token}}
authentication:
  - name: corp
    clientCertificates: {{caFile: "{east_ca}"}}
    tokenFile: tokens.csv
    tokenReview: {{cluster: east}}
  - name: anonymous
    clientCertificates: {{caFile: "{east_ca}"}}
    requestHeader: {{caFile: front-proxy-ca.crt, allowedNames: [corp-front-proxy]}}
    tokenReview: {{cluster: east}}
    anonymous: {{enabled: true}}
  - {{name: probes, anonymous: {{enabled: true, paths: [/version]}}, clientCertificates: {{caFile: "{east_ca}"}}}}
{reviewers}  - {{name: shared, tokenReview: {{cluster: east}}, shareServiceAccounts: true}}
  - name: offline
    oidc:
      - {{issuer: "{account_issuer}", audiences: ["{account_issuer}"], jwksFile: keys.json, usernamePrefix: "east:"}}
  - name: url
    allowSystemNames: true
    oidc:
      - {{issuer: "{account_issuer}", audiences: ["{account_issuer}"], jwksURL: "{site}/keys/east", caFile: ca.crt,
         usernamePrefix: "-"}}
  - name: discovery
    oidc: [{{issuer: "{site}/realm", audiences: [k8s], caFile: ca.crt, usernamePrefix: "oidc:", groupsClaim: groups}}]
authorization:
  - name: masters
    rules:
      - {{userGroups: ["system:masters"], verbs: ["*"], apiGroups: ["*"], resources: ["*"]}}
      - {{userGroups: ["system:masters"], verbs: [impersonate], apiGroups: [""], resources: [users]}}
  - name: stars
    rules:
      - {{verbs: ["*"], apiGroups: ["*"], resources: ["*"]}}
      - {{verbs: ["*"], nonResourceURLs: ["*"]}}
  - name: readers
    rules:
      - {{verbs: [get, list, watch], apiGroups: ["*"], resources: ["*"]}}
servers:
  - {{name: corp, default: true, backend: {{clusters: "*"}}, authentication: corp}}
  - {{name: anonymous, serverNames: [anonymous.{domain}], backend: {{clusters: "*"}}, authentication: anonymous}}
  - {{name: probes, serverNames: [probes.{domain}], backend: {{clusters: "*"}}, authentication: probes}}
{reviewing}  - {{name: shared, serverNames: [shared.{domain}], backend: {{clusters: "*"}}, authentication: shared}}
  - {{name: offline, serverNames: [offline.{domain}], backend: {{clusters: "*"}}, authentication: offline}}
  - {{name: url, serverNames: [url.{domain}], backend: {{clusters: "*"}}, authentication: url}}
  - {{name: discovery, serverNames: [discovery.{domain}], backend: {{clusters: "*"}}, authentication: discovery}}
  - {{name: masters, serverNames: [masters.{domain}], backend: {{clusters: "*"}}, authentication: corp,
      authorization: masters}}
  - {{name: stars, serverNames: [stars.{domain}], backend: {{clusters: "*"}}, authentication: corp,
      authorization: stars}}
  - {{name: readers, serverNames: [readers.{domain}], backend: {{clusters: "*"}}, authentication: corp,
      authorization: readers}}
  - {{name: none, serverNames: [none.{domain}], backend: {{cluster: east}}, authentication: none}}
logging: {{access: {{file: access.log}}}}
"""
)


#: The clusters of which each has a server whose TokenReview it answers itself: groups such as system:masters that a
#: cluster says somebody to have count towards that cluster alone, and one name is one cluster.
REVIEWERS = ("token", "front", "own")
REVIEWER = """\
  - {{name: by-{name}, clientCertificates: {{caFile: "{ca}"}}, tokenReview: {{cluster: {name}}}}}
"""
REVIEWING = """\
  - {{name: by-{name}, serverNames: [{name}.{domain}], backend: {{clusters: "*"}}, authentication: by-{name}}}
"""


class Site:
    """A web server with TLS that has `documents` by path."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.documents: dict[str, bytes] = {}
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                document = site.documents.get(self.path)
                self.send_response(404 if document is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(document or b"")))
                self.end_headers()
                self.wfile.write(document or b"")

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(20)
        self._server.server_close()


class IdentityEnvironment:
    """The clusters `east` and `west`; the first has several names in the proxy, one for each kind of identity."""

    ROUTES = ("direct", "east", "token", "front", "own", "lent", "west")

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        options = ("--legacy-impersonation",)
        self.east = SimulatedClusterProcess("east", options=options, directory=directory / "east")
        self.west = SimulatedClusterProcess("west", options=options, directory=directory / "west")
        self.port = 0  # until the clusters have theirs
        self.authority = Authority("identity CA")
        self.front_proxies = Authority("corp front proxies")
        self.home = directory / "home"
        self.kubeconfig = directory / "kubeconfig"
        self._site: Site | None = None
        self._daemon: Daemon | None = None

    def start(self) -> IdentityEnvironment:
        for cluster in (self.east, self.west):
            cluster.spawn()
        self.home.mkdir()
        names = ["127.0.0.1", "localhost", f"*.{DOMAIN}"]
        pair = self.authority.server(names).write(self.directory, "proxy")
        (self.directory / "ca.crt").write_bytes(self.authority.pem)
        (self.directory / "front-proxy-ca.crt").write_bytes(self.front_proxies.pem)
        self.front_proxies.client("corp-front-proxy").write(self.directory, "corp-front-proxy")
        self.front_proxies.client("another").write(self.directory, "another-front-proxy")
        (self.directory / "tokens.csv").write_text('filed-token,filed,u-1,"dev,filers"\n')
        for cluster in (self.east, self.west):
            cluster.wait_ready()
        self.control().create(right_to_pass(CREDENTIAL_ID))
        self._site = Site(*pair)
        self._publish_keys()
        self.port = reserved_port()
        self._daemon = Daemon(self.directory, self.config()).start()
        self._daemon.wait_for("takes requests", count=6)  # all endpoints were found healthy
        self.kubeconfig.write_text(json.dumps(self._kubeconfig()))
        return self

    def stop(self) -> None:
        if self._daemon is not None:
            self._daemon.stop()
        if self._site is not None:
            self._site.close()
        self.east.cleanup()
        self.west.cleanup()

    @property
    def daemon(self) -> Daemon:
        assert self._daemon is not None
        return self._daemon

    @property
    def site(self) -> Site:
        assert self._site is not None
        return self._site

    def config(self) -> str:
        return CONFIG.format(
            port=self.port,
            reviewers="".join(REVIEWER.format(name=name, ca=self.east.ca) for name in REVIEWERS),
            reviewing="".join(REVIEWING.format(name=name, domain=DOMAIN) for name in REVIEWERS),
            east=self.east.url,
            east_ca=self.east.ca,
            east_directory=self.east.directory,
            west=self.west.url,
            west_ca=self.west.ca,
            site=self.site.url,
            account_issuer=ACCOUNT_ISSUER,
            domain=DOMAIN,
        )

    def control(self) -> ControlClient:
        return ControlClient(self.east.control_url)

    def _publish_keys(self) -> None:
        """The keys of east's service accounts in a file and at the site; and an issuer of the site's own."""
        keys = ask(self.direct(), "/openid/v1/jwks", headers=bearer("admin-test-token")).body
        (self.directory / "keys.json").write_bytes(keys)
        realm = {"issuer": f"{self.site.url}/realm", "jwks_uri": f"{self.site.url}/keys/realm"}
        self.site.documents.update(
            {
                "/keys/east": keys,
                "/keys/realm": issuer.jwks(issuer.ec_jwk("P-256", "realm")),
                "/realm/.well-known/openid-configuration": json.dumps(realm).encode(),
            }
        )

    def direct(self, user: str = "") -> Address:
        """East itself, with the client certificate of `user`."""
        return Address(self.east.ports[0], self._context(self.east.ca, user))

    def proxy(self, server: str = "", user: str = "") -> Address:
        """The server of this name (one of `REVIEWERS`: that reviews the tokens of its clients), with a certificate."""
        name = f"{server}.{DOMAIN}" if server else ""
        return Address(self.port, self._context(str(self.directory / "ca.crt"), user), name)

    def _context(self, ca: str, user: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=ca)
        if user in ("admin", "alice", "mcproxy"):
            context.load_cert_chain(self.east.user(user).certificate, self.east.user(user).key)
        elif user:
            context.load_cert_chain(self.directory / f"{user}.crt", self.directory / f"{user}.key")
        return context

    def account_token(self, name: str, namespace: str = "demo", *, audience: str = "", user: str = "admin") -> str:
        """A token of a service account of east, asked for directly."""
        spec = {"audiences": [audience]} if audience else {}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        headers = [("Content-Type", "application/json")]
        answer = ask(self.direct(user), path, method="POST", headers=headers, body=json.dumps(body).encode())
        assert answer.status == 201, answer
        return str(answer.json["status"]["token"])

    def _kubeconfig(self) -> dict[str, Any]:
        clusters: list[dict[str, Any]] = []
        for route in self.ROUTES:
            server = self.east.url if route == "direct" else f"https://127.0.0.1:{self.port}/clusters/{route}"
            ca = self.east.ca if route == "direct" else str(self.directory / "ca.crt")
            cluster = {"server": server, "certificate-authority": ca}
            if route in REVIEWERS:
                cluster["tls-server-name"] = f"{route}.{DOMAIN}"
            clusters.append({"name": route, "cluster": cluster})
        users: list[dict[str, Any]] = []
        for name in BY_CERTIFICATE:
            pair = self.east.user(name.partition("-")[0])
            users.append({"name": name, "user": {"client-certificate": pair.certificate, "client-key": pair.key}})
        tokens = {**{name: f"{name.partition('-')[0]}-test-token" for name in BY_TOKEN}, "nobody": "nonsense"}
        users += [{"name": name, "user": {"token": token}} for name, token in tokens.items()]
        contexts = [
            {
                "name": f"{user['name']}@{route}",
                "context": {"cluster": route, "user": user["name"], "namespace": "demo"},
            }
            for user in users
            for route in self.ROUTES
        ]
        return kubeconfig_of(
            clusters,
            users,
            contexts,
            "",
        )

    def kubectl(self, program: str, user: str, route: str) -> Kubectl:
        return Kubectl(program, str(self.kubeconfig), f"{user}@{route}", self.home)


def right_to_pass(key: str) -> list[dict[str, Any]]:
    """What the simulated mcproxy needs beside its usual rights to pass on an extra."""
    group = "rbac.authorization.k8s.io"
    metadata = {"name": "mcproxy-extra"}
    rule = {"apiGroups": ["authentication.k8s.io"], "resources": [f"userextras/{key}"], "verbs": ["impersonate"]}
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": [rule]}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "mcproxy-extra"},
        "subjects": [{"kind": "User", "apiGroup": group, "name": "mcproxy"}],
    }
    return [role, binding]


def bearer(token: str) -> list[tuple[str, str]]:
    """The header of a token."""
    return [("Authorization", f"Bearer {token}")]
