"""Authentication and authorization sections of valid files; errors are in test_cases."""

from pathlib import Path

import pytest

from mcproxy.config.load import load
from mcproxy.config.model import (
    OIDC,
    Anonymous,
    Authentication,
    Authorization,
    Config,
    EndpointConfig,
    FrontProxy,
    JWKSFile,
    KubeconfigReference,
    PEMFile,
    RequestHeader,
    Rule,
    SubjectAccessReview,
    TokenReview,
    UpstreamIdentity,
)
from tests.config.pki import NOW

BASE = """
version: 1
listeners: [{name: a, bind: "127.0.0.1:0"}]
clusters:
  - {name: east, endpoints: [{url: "https://10.0.0.1"}], credentials: {tokenFile: ../token}}
  - {name: west, endpoints: [{url: "https://10.0.0.2"}], credentials: {tokenFile: ../token}}
"""


@pytest.fixture
def place(folder: Path) -> Path:
    path = folder / "access"
    path.mkdir(exist_ok=True)
    return path


def config(place: Path, text: str) -> Config:
    file = place / "mcproxy.yaml"
    file.write_text(BASE + text)
    return load(str(file), environ={}, now=NOW).config


def pem(path: Path) -> PEMFile:
    return PEMFile(str(path), path.read_bytes())


def test_a_set_with_every_authenticator(place: Path, folder: Path) -> None:
    loaded = config(
        place,
        """
authentication:
  - name: corp
    requestHeader: {caFile: ../front-ca.crt, allowedNames: [front, other]}
    clientCertificates: {caFile: ../ca.crt, crlFile: ../der.crl, clusterCA: west}
    tokenFile: ../tokens/good.csv
    oidc:
      - {issuer: "https://a.example.com", audiences: [k8s, x], jwksFile: ../jwks/good.json, usernamePrefix: "a:",
         requiredClaims: {hd: example.com, "https://a/b": "c d"}}
    tokenReview: {cluster: west, audiences: [x], cacheSuccess: 1m, cacheFailure: 0}
    webhook: {kubeconfig: ../webhook.kubeconfig, cacheSuccess: 0, cacheFailure: 1s}
    anonymous: {enabled: true, paths: [/healthz, /version]}
    allowSystemNames: true
    shareServiceAccounts: true
""",
    )
    [corp] = loaded.authentication
    assert corp.request_header == RequestHeader(ca=pem(folder / "front-ca.crt"), allowed_names=("front", "other"))
    assert corp.client_ca == pem(folder / "ca.crt")
    assert corp.client_crl == pem(folder / "der.crl")
    assert corp.cluster_ca == "west"
    assert corp.token_file is not None
    assert corp.token_file.path == str(folder / "tokens/good.csv")
    assert corp.token_file.tokens[0].user == "alice"
    keys = folder / "jwks/good.json"
    assert corp.oidc == (
        OIDC(
            issuer="https://a.example.com",
            audiences=("k8s", "x"),
            jwks=JWKSFile(str(keys), keys.read_bytes()),
            username_prefix="a:",
            required_claims=(("hd", "example.com"), ("https://a/b", "c d")),
        ),
    )
    assert corp.token_review == TokenReview(cluster="west", audiences=("x",), cache_success=60, cache_failure=0)
    assert corp.anonymous == Anonymous(enabled=True, paths=("/healthz", "/version"))
    assert (corp.allow_system_names, corp.share_service_accounts) == (True, True)


def test_a_webhook_is_where_the_current_context_of_its_kubeconfig_says(place: Path, folder: Path) -> None:
    [found] = config(place, "authentication: [{name: a, webhook: {kubeconfig: ../webhook.kubeconfig}}]").authentication
    assert found.webhook is not None
    assert found.webhook.kubeconfig == KubeconfigReference(str(folder / "webhook.kubeconfig"), "x")
    assert found.webhook.endpoint == EndpointConfig(
        name="https://authn.example.com:443/authenticate",
        scheme="https",
        host="authn.example.com",
        port=443,
        path="/authenticate",
    )
    assert found.webhook.tls.ca == pem(folder / "ca.crt")
    assert found.webhook.credentials.certificate == pem(folder / "client.crt")
    assert (found.webhook.cache_success, found.webhook.cache_failure) == (120, 30)


def test_a_set_has_only_what_the_file_has(place: Path) -> None:
    loaded = config(place, "authentication: [{name: a, tokenReview: {}}]")
    assert loaded.authentication == (Authentication(name="a", token_review=TokenReview()),)


@pytest.mark.parametrize(
    ("written", "prefix"),
    [
        ("", "https://a.example.com#"),
        ("usernameClaim: email", ""),
        ("usernameClaim: name", "https://a.example.com#"),
        ('usernamePrefix: ""', ""),
        ('usernamePrefix: "-"', ""),
        ('usernameClaim: email, usernamePrefix: "e:"', "e:"),
    ],
)
def test_the_prefix_of_user_names_is_that_of_kube_apiserver(place: Path, written: str, prefix: str) -> None:
    text = 'authentication: [{name: a, oidc: [{issuer: "https://a.example.com", audiences: [k8s], %s}]}]'
    [found] = config(place, text % written).authentication
    assert found.oidc[0].username_prefix == prefix


def test_groups_have_no_prefix_unless_one_is_given(place: Path) -> None:
    loaded = config(
        place,
        """
authentication:
  - name: a
    oidc:
      - {issuer: "https://a.example.com", audiences: [k8s], groupsClaim: groups}
      - {issuer: "https://b.example.com", audiences: [k8s], groupsClaim: groups, groupsPrefix: "-"}
      - {issuer: "https://c.example.com", audiences: [k8s], groupsClaim: groups, groupsPrefix: "c:"}
      - {issuer: "https://d.example.com/x/", audiences: [k8s], jwksURL: "https://d.example.com/k?v=1",
         caFile: ../ca.crt}
""",
    )
    issuers = loaded.authentication[0].oidc
    assert [issuer.groups_prefix for issuer in issuers] == ["", "", "c:", ""]
    assert [issuer.groups_claim for issuer in issuers] == ["groups", "groups", "groups", None]
    assert issuers[3].issuer == "https://d.example.com/x/"
    assert issuers[3].jwks_url == "https://d.example.com/k?v=1"
    assert issuers[3].ca is not None


def test_authorizers(place: Path) -> None:
    loaded = config(
        place,
        """
authorization:
  - {name: asked, subjectAccessReview: {cluster: east, cacheAllowed: 1m, cacheDenied: 0}}
  - {name: anywhere, subjectAccessReview: {}}
  - {name: local, rules: [{verbs: [get], users: ["*"], apiGroups: ["*"], resources: ["*"], clusters: [west]}]}
  - {name: both, rules: [{verbs: [get], nonResourceURLs: [/healthz]}], subjectAccessReview: {}}
""",
    )
    asked, anywhere, local, both = loaded.authorization
    assert asked == Authorization(
        name="asked",
        subject_access_review=SubjectAccessReview(cluster="east", cache_allowed=60, cache_denied=0),
    )
    assert anywhere.subject_access_review == both.subject_access_review == SubjectAccessReview()
    assert local.rules == (Rule(verbs=("get",), users=("*",), api_groups=("*",), resources=("*",), clusters=("west",)),)
    assert (local.subject_access_review, anywhere.rules) == (None, None)
    assert both.rules == (Rule(verbs=("get",), non_resource_urls=("/healthz",)),)


def test_a_server_names_its_set_and_its_authorizer(place: Path) -> None:
    loaded = config(
        place,
        """
authentication: [{name: corp, tokenReview: {}}]
authorization: [{name: asked, subjectAccessReview: {}}]
servers:
  - {name: a, serverNames: [a], backend: {cluster: east}, authentication: corp, authorization: asked}
  - {name: b, serverNames: [b], backend: {cluster: east}, authentication: none}
  - {name: c, serverNames: [c], backend: {cluster: east}}
""",
    )
    found = [(server.authentication, server.authorization) for server in loaded.servers]
    assert found == [("corp", "asked"), (None, None), (None, None)]


def test_how_users_are_conveyed_to_clusters(place: Path, folder: Path) -> None:
    loaded = config(
        place,
        """
  - {name: a, endpoints: [{url: "https://a"}], credentials: {token: t}, impersonateExtras: [scopes, a.b/c]}
  - {name: b, endpoints: [{url: "https://a"}], credentials: {token: t}, identity: Impersonate}
  - name: c
    endpoints: [{url: "https://a"}]
    identity: RequestHeader
    frontProxy: {certFile: ../client.crt, keyFile: ../client.key}
  - {name: d, endpoints: [{url: "https://a"}], credentials: {token: t}, impersonateExtras: ["*"]}
  - {name: e, endpoints: [{url: "https://a"}], credentials: {token: t}, impersonateExtras: [scopes, "*"]}
""",
    )
    _, _, a, b, c, d, e = loaded.clusters
    assert (d.impersonate_extras, e.impersonate_extras) == (("*",), ("*",))
    assert (a.identity, a.impersonate_extras, a.front_proxy) == (
        UpstreamIdentity.IMPERSONATE,
        ("scopes", "a.b/c"),
        None,
    )
    assert (b.identity, b.impersonate_extras) == (UpstreamIdentity.IMPERSONATE, ())
    assert c.identity is UpstreamIdentity.REQUEST_HEADER
    assert c.front_proxy == FrontProxy(pem(folder / "client.crt"), pem(folder / "client.key"))


def test_equal_files_give_equal_sets_and_a_changed_file_another(place: Path) -> None:
    (place / "users.csv").write_text("hush,alice,1\n")
    text = "authentication: [{name: a, tokenFile: users.csv}]"
    before = config(place, text).authentication
    assert config(place, text).authentication == before
    (place / "users.csv").write_text("hush,bob,1\n")
    assert config(place, text).authentication != before
    assert "hush" not in repr(before)


def test_an_included_file_can_bring_sets_and_authorizers(place: Path) -> None:
    (place / "more.yaml").write_text(
        "authentication: [{name: b, tokenReview: {}}]\nauthorization: [{name: c, subjectAccessReview: {}}]\n"
    )
    loaded = config(place, "include: [more.yaml]\nauthentication: [{name: a, tokenReview: {}}]")
    assert [each.name for each in loaded.authentication] == ["a", "b"]
    assert [each.name for each in loaded.authorization] == ["c"]


def test_the_cluster_whose_authority_it_is_must_be_there(place: Path) -> None:
    [found] = config(place, "authentication: [{name: a, clientCertificates: {caFile: ../ca.crt}}]").authentication
    assert found.cluster_ca == ""
