"""What is made of an UpstreamCluster's other fields, and what is said of those that are not carried over."""

from __future__ import annotations

from typing import Any

import pytest

from mcproxy.importing.fragment import Fragment, check, problems_of
from mcproxy.importing.kubegateway.upstream_cluster import KubeGatewayOptions, listener, translate, translate_all
from mcproxy.importing.object_files import UnusableError
from tests.importing.builders import ANY, b64, ca, one, pair, upstream_cluster

NAME = "east.example.com"


def made(metadata: dict[str, Any] | None = None, options: KubeGatewayOptions | None = None, **spec: Any) -> Fragment:
    document = upstream_cluster(NAME, **spec)
    document["metadata"] |= metadata or {}
    return translate(one(document), options or KubeGatewayOptions())


def notes(fragment: Fragment) -> str:
    return "\n".join(map(str, fragment.notes))


def server(fragment: Fragment) -> dict[str, Any]:
    return fragment.sections["servers"][0]


def cluster(fragment: Fragment) -> dict[str, Any]:
    return fragment.sections["clusters"][0]


def test_a_plain_one_loads_and_has_nothing_to_report() -> None:
    fragment = made()
    assert problems_of([fragment, listener([fragment], KubeGatewayOptions())]) == []
    assert fragment.notes == []
    assert cluster(fragment)["tls"]["serverName"] == NAME  # KubeGateway verifies the cluster's name
    assert fragment.files[cluster(fragment)["credentials"]["tokenFile"]] == b"very-secret-token"
    assert server(fragment)["serverNames"] == [NAME]
    assert fragment.sections["authentication"][0]["tokenReview"] == {"cluster": NAME}


def test_endpoints() -> None:
    servers = [
        {"endpoint": "https://10.0.0.1:6443"},
        {"endpoint": "https://10.0.0.2:6443/prefix", "disabled": True},
        {"endpoint": "https://10.0.0.1:6443"},
    ]
    policies = [{"rules": [ANY], "upstreamSubset": ["https://10.0.0.2:6443/prefix", "https://gone"]}]
    fragment = made(servers=servers, dispatchPolicies=policies)
    assert cluster(fragment)["endpoints"] == [
        {"name": "endpoint-1", "url": "https://10.0.0.1:6443"},
        {"name": "endpoint-2", "url": "https://10.0.0.2:6443", "disabled": True},
    ]
    assert server(fragment)["dispatch"][0]["endpoints"] == ["endpoint-2"]
    assert 'the path "/prefix" is left out' in notes(fragment)
    assert '"https://gone" is no endpoint' in notes(fragment)


def test_a_subset_without_endpoints_does_not_become_all() -> None:
    fragment = made(dispatchPolicies=[{"rules": [ANY], "upstreamSubset": ["https://gone"]}])
    assert server(fragment)["dispatch"][0]["reject"]["code"] == 503


@pytest.mark.parametrize("policies", [None, [], [{"rules": []}], [{}], [{"rules": [{"verbs": []}]}]])
def test_no_policies_refuse_everything(policies: Any) -> None:
    fragment = made(dispatchPolicies=policies)
    dispatch = server(fragment)["dispatch"]
    assert [policy["reject"]["code"] for policy in dispatch] == [403]
    assert {"verbs": ["*"], "nonResourceURLs": ["*"]} in dispatch[0]["rules"]


@pytest.mark.parametrize(
    ("gates", "denied"),
    [
        ("DenyAllRequests=true", True),
        ("Tracing=true, DenyAllRequests=1", True),
        ("AllAlpha=true", True),
        ("AllAlpha=true,DenyAllRequests=false", False),
        ("DenyAllRequests=sometimes", True),
        ("DenyAllRequests", True),
        ("CloseConnectionWhenIdle=true", False),
        ("", False),
    ],
)
def test_feature_gates(gates: str, denied: bool) -> None:
    fragment = made({"annotations": {"proxy.kubegateway.io/feature-gates": gates}})
    assert (server(fragment)["dispatch"][0].get("reject") is not None) is denied
    assert ("Tracing is not carried over" in notes(fragment)) is ("Tracing" in gates)


@pytest.mark.parametrize(
    ("logging", "policy", "expected"),
    [
        ("off", "on", None),
        ("on", "", True),
        ("on", "off", False),
        ("", "on", True),
        ("", "", False),
        ("on", "on", True),
    ],
)
def test_access_log(logging: str, policy: str, expected: bool | None) -> None:
    fragment = made(logging={"mode": logging}, dispatchPolicies=[{"rules": [ANY], "logMode": policy}])
    assert server(fragment)["accessLog"] is (logging != "off")
    assert server(fragment)["dispatch"][0].get("accessLog") is expected


def test_flow_controls() -> None:
    schemas = [
        {"name": "in flight!", "maxRequestsInflight": {"max": 7}},
        {"name": "bucket", "tokenBucket": {"qps": 5, "burst": 10}, "globalTokenBucket": {"qps": 50, "burst": 99}},
        {"name": "free", "exempt": {}},
    ]
    policies = [{"rules": [ANY], "flowControlSchemaName": schema["name"]} for schema in schemas]
    schemas.append({"name": "unused", "exempt": {}})
    fragment = made(flowControl={"flowControlSchemas": schemas}, dispatchPolicies=policies)
    assert fragment.sections["flowControls"] == [
        {"name": f"{NAME}_1_in-flight", "type": "MaxRequestsInflight", "max": 7, "maxLongRunning": 7},
        {"name": f"{NAME}_2_bucket", "type": "TokenBucket", "qps": 5, "burst": 10},
        {"name": f"{NAME}_3_free", "type": "Exempt"},
    ]
    assert server(fragment)["dispatch"][0]["flowControl"] == f"{NAME}_1_in-flight"
    assert 'flowControlSchemas: "unused" is left out: no policy refers to it' in notes(fragment)
    assert "globalTokenBucket: is not carried over" in notes(fragment)
    assert "up to 7 of them beside up to 7 others" in notes(fragment)


@pytest.mark.parametrize(
    "schema",
    [
        {"name": "zero", "maxRequestsInflight": {}},
        {"name": "zero", "tokenBucket": {"qps": 5}},
        {"name": "other", "maxRequestsInflight": {"max": 5}},
    ],
)
def test_a_limit_of_nothing_or_one_that_is_missing_does_not_become_none(schema: dict[str, Any]) -> None:
    policies = [{"rules": [ANY], "flowControlSchemaName": "zero"}]
    fragment = made(flowControl={"flowControlSchemas": [schema]}, dispatchPolicies=policies)
    assert "reject" in server(fragment)["dispatch"][0]


def test_tls() -> None:
    insecure = made(clientConfig={"insecure": True, "bearerToken": b64(b"t")})
    assert cluster(insecure)["tls"] == {"serverName": NAME, "insecureSkipVerify": True}
    assert "INSECURE" in notes(insecure)
    both = made(clientConfig={"insecure": True, "bearerToken": b64(b"t"), "caData": b64(ca()), "serverName": "K8S.x"})
    assert "insecureSkipVerify" not in cluster(both)["tls"]
    assert cluster(both)["tls"]["serverName"] == "k8s.x"
    assert "the certificate is verified" in notes(both)


def test_client_certificate_of_the_proxy() -> None:
    chain, key = pair("proxy")
    fragment = made(clientConfig={"certData": b64(chain), "keyData": b64(key), "caData": b64(ca())})
    assert cluster(fragment)["credentials"] == {"certFile": f"{NAME}_client.crt", "keyFile": f"{NAME}_client.key"}
    assert problems_of([fragment, listener([fragment], KubeGatewayOptions())]) == []


def test_names_that_kubegateway_never_finds_are_left_out() -> None:
    fragment = made(secureServing={"serverNames": ["*.wild.example.com", "10.0.0.1", "Other.example.com"]})
    assert server(fragment)["serverNames"] == [NAME, "other.example.com"]
    assert notes(fragment).count("exact DNS name") == 2


def test_what_was_in_the_flags_of_the_gateway() -> None:
    options = KubeGatewayOptions(certificate=pair("gateway"), client_ca=ca(), bind="0.0.0.0:443")
    fragment = made(options=options, secureServing=None)
    front = listener([fragment], options)
    assert fragment.sections["authentication"][0]["clientCertificates"]["caFile"] == f"{NAME}_clients-ca.crt"
    assert front.sections["listeners"][0]["tls"] == {"certificates": ["kubegateway_own"]}
    assert problems_of([fragment, front]) == []
    alone = made(secureServing=None)
    assert "--certificate" in notes(alone)
    assert "--client-ca" in notes(alone)
    front = listener([alone], KubeGatewayOptions())
    assert front.sections["listeners"][0]["bind"] == "127.0.0.1:6443"


def test_unknown_fields_are_reported_by_path() -> None:
    fragment = made(tomorrow=1, clientConfig={"caData": b64(ca()), "bearerToken": b64(b"t"), "proxyURL": "x", "qps": 3})
    assert "spec.tomorrow: is not known" in notes(fragment)
    assert "spec.clientConfig.proxyURL: is not known" in notes(fragment)
    assert "spec.clientConfig.qps: is not carried over" in notes(fragment)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"servers": []}, "no servers"),
        ({"servers": [{"endpoint": "10.0.0.1"}]}, "servers[0].endpoint"),
        ({"servers": [{"endpoint": "https://u:p@h"}]}, "servers[0].endpoint"),
        ({"servers": [{"endpoint": "https://h"}, {"endpoint": "http://h"}]}, "http and https"),
        ({"servers": [{"endpoint": "https://h", "disabled": "false"}]}, "neither true nor false"),
        ({"clientConfig": {"insecure": "no"}}, "neither true nor false"),
        ({"clientConfig": {"bearerToken": "%%"}}, "is not base64"),
        ({"clientConfig": {"certData": b64(b"x")}}, "belong together"),
        ({"secureServing": {"keyData": b64(b"x")}}, "belong together"),
        ({"logging": {"mode": True}}, "is not a string"),
        ({"logging": {"mode": "loud"}}, "neither on nor off"),
        ({"flowControl": {"flowControlSchemas": [{"name": "a", "maxRequestsInflight": {"max": -1}}]}}, "whole number"),
        ({"flowControl": {"flowControlSchemas": [{"name": "a", "maxRequestsInflight": {"max": 1e9}}]}}, "whole number"),
        ({"flowControl": {"flowControlSchemas": [{"name": "a"}]}}, "no type"),
        ({"flowControl": {"flowControlSchemas": [{"name": "a", "exempt": {}}] * 2}}, "duplicate"),
        ({"flowControl": {"flowControlSchemas": [{"name": "a", "exempt": {}, "tokenBucket": {}}]}}, "exempt and token"),
        ({"dispatchPolicies": {"rules": []}}, "is not a list"),
        ({"dispatchPolicies": [{"rules": [{"verbs": "get"}]}]}, "is not a list"),
        ({"dispatchPolicies": [{"rules": [{"verbs": [None]}]}]}, "is not a string"),
        ({"dispatchPolicies": [{"rules": [{"verbs": ["get\x1b[2J"]}]}]}, "cannot be printed"),
        ({"dispatchPolicies": [{"rules": [None]}]}, "is not a mapping"),
    ],
)
def test_values_that_are_wrong_make_the_object_unusable(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(UnusableError) as caught:
        made(**spec)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "..", "A_b", "x" * 300, "-x", "a..b", "east.example.com."])
def test_a_name_is_never_a_path(name: str) -> None:
    document = upstream_cluster()
    document["metadata"]["name"] = name
    with pytest.raises(UnusableError, match=r"metadata.name"):
        translate(one(document), KubeGatewayOptions())


def test_an_object_that_the_loader_refuses_is_left_out_and_the_others_are_not() -> None:
    bad = upstream_cluster("west.example.com", clientConfig={"bearerToken": b64(b"t"), "caData": b64(b"no PEM")})
    same = upstream_cluster("third.example.com", secureServing={"serverNames": [NAME], "clientCAData": b64(ca())})
    objects = [one(upstream_cluster(NAME)), one(bad), one(same), one({**upstream_cluster(NAME), "kind": "Other"})]
    fragments, left_out = translate_all([*objects, objects[0]], KubeGatewayOptions())
    assert [str(note) for note in left_out] == [
        f"Other {NAME}: left out: it is no UpstreamCluster",
        f"UpstreamCluster {NAME}: left out: there is another of this name before it",
    ]
    checked = check(fragments, lambda found: (listener(found, KubeGatewayOptions()), *found))
    assert [each.origin for each in checked.fragments] == ["listener kubegateway", f"UpstreamCluster {NAME}"]
    said = "\n".join(map(str, checked.left_out))
    assert "UpstreamCluster west.example.com: left out: clusters[0].tls.caFile" in said
    assert "UpstreamCluster third.example.com: left out" in said
    assert "mcproxy-import-" not in said
    assert "very-secret-token" not in said
