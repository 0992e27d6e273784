"""Ways round the rules: paths, methods and queries that mean one thing to the rules and another to a kube-apiserver."""

from __future__ import annotations

import pytest

from mcproxy.config import model
from tests.security.authenticating_proxy import (
    ALICE_TOKEN,
    ALL,
    UNAUTHORIZED,
    AuthenticatingProxy,
    bearer,
    request,
    status,
)

READING = ("get", "list", "watch")

#: alice may read pods of the namespace "demo" in the cluster "own", where she has all rights of the proxy, and get one
#: secret. Nothing is allowed elsewhere but the version.
LITTLE = model.Authorization(
    name="rules",
    rules=(
        model.Rule(verbs=READING, api_groups=("",), resources=("pods", "namespaces", "watch"), namespaces=("demo",)),
        model.Rule(verbs=("get",), api_groups=("",), resources=("pods/log",), namespaces=("demo",)),
        model.Rule(
            verbs=READING, api_groups=("",), resources=("secrets",), resource_names=("one",), namespaces=("demo",)
        ),
        model.Rule(verbs=("get",), non_resource_urls=("/version", "/openapi/*", "/clusters/*")),
    ),
)
DEMO = "/api/v1/namespaces/demo"


def lines(method: str, target: str) -> bytes:
    return request(bearer(ALICE_TOKEN), host=ALL, target=b"/clusters/own" + target.encode(), method=method.encode())


async def opened(proxy: AuthenticatingProxy) -> AuthenticatingProxy:
    await proxy.serve(proxy.configuration(authorization=(LITTLE,)))
    return proxy


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", f"{DEMO}/pods"),
        ("HEAD", f"{DEMO}/pods"),
        ("GET", f"{DEMO}/pods/a/"),
        ("GET", f"{DEMO}/p%6Fds"),
        ("GET", "/api/v1/n%61mespaces/demo/pods"),
        ("GET", "/api/v1/%77atch/namespaces/demo/pods"),
        ("GET", f"{DEMO}/pods/a/log?follow=1"),
        ("GET", f"{DEMO}/secrets/one"),
        ("GET", f"{DEMO}/secrets?fieldSelector=metadata.name%3Done"),
        ("GET", "/version"),
        ("GET", "/openapi//v2"),
    ],
)
async def test_what_is_allowed_passes(authenticating_proxy: AuthenticatingProxy, method: str, target: str) -> None:
    proxy = await opened(authenticating_proxy)
    client = await proxy.asks(lines(method, target), server_name=ALL)
    await proxy.until(lambda: b"\r\n\r\n" in client.received)
    assert client.received.startswith(b"HTTP/1.1 200 ")
    assert proxy.own.received.startswith(f"{method} {target} HTTP/1.1\r\n".encode())


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/api/v1/pods"),
        ("GET", "/api/v1/namespaces/other/pods"),
        ("GET", f"{DEMO}/secrets"),
        ("GET", f"{DEMO}/secrets/two"),
        # verbs
        ("POST", f"{DEMO}/pods"),
        ("OPTIONS", f"{DEMO}/pods"),
        ("GETS", f"{DEMO}/pods"),
        ("PATCH", f"{DEMO}/pods/a"),
        ("DELETE", f"{DEMO}/pods"),
        ("POST", "/version"),
        # other readings of the same words
        ("GET", f"{DEMO}/pods/a/exec?command=sh"),
        ("GET", f"{DEMO}/pods/a/e%78ec?command=sh"),
        ("GET", f"{DEMO}/pods/a/proxy/"),
        ("GET", f"{DEMO}/pods/a/pr%6Fxy/x"),
        ("GET", "/api/v1/proxy/namespaces/demo/pods/a"),
        ("GET", "/api/v1/pr%6Fxy/namespaces/demo/pods/a"),
        ("GET", "/api/v1/namespaces/demo/finalize"),
        ("GET", "/api/v1/namespaces/%64emo/secrets/two"),
        ("GET", "/api/v1/n%61mespaces/demo/secrets"),
        ("GET", "/api/v1/n%61mespaces/other/pods/a"),
        ("GET", "/api/v1/%77atch/pods"),
        ("GET", "/api/v1/%77atch/secrets"),
        ("GET", "/api/v1/watch/secrets?fieldSelector=metadata.name%3Done"),
        ("GET", "/apis/apps/v1/%77atch/deployments"),
        ("GET", "/apis/v1/namespaces/demo/pods"),
        ("GET", "/apis/example.com/v1/namespaces/demo/pods"),
        ("GET", f"{DEMO}/pods;a=b"),
        ("GET", f"{DEMO}/secrets%3FfieldSelector=metadata.name%3Done"),
        # selectors
        ("GET", f"{DEMO}/secrets?fieldSelector=metadata.name!%3Done"),
        ("GET", f"{DEMO}/secrets?fieldSelector=%20metadata.name%3Done"),
        ("GET", f"{DEMO}/secrets?fieldSelector=a%3Db&fieldSelector=metadata.name%3Done"),
        ("GET", f"{DEMO}/secrets?fieldSelector=metadata.name%3Done;&a=b"),
        ("GET", f"{DEMO}/secrets?FieldSelector=metadata.name%3Done"),
        ("GET", f"{DEMO}/secrets?fieldSelector=metadata.name%3D"),
        ("GET", f"{DEMO}/secrets#?fieldSelector=metadata.name%3Done"),
        # nothing of a resource
        ("GET", "/versions"),
        ("GET", "/version/"),
        ("GET", "/Version"),
        ("GET", "/openapi"),
        ("GET", "/"),
        ("GET", ""),
        ("GET", "/metrics"),
        # more than one way to read it
        ("GET", "/version/../metrics"),
        ("GET", "/version/%2e%2e/metrics"),
        ("GET", "/openapi/..%2fapi/v1/secrets"),
        ("GET", "/openapi/..;/api/v1/secrets"),
        ("GET", "/openapi\\..\\api/v1/secrets"),
        ("GET", "//api/v1/secrets"),
        ("GET", "/api//v1/secrets"),
        ("GET", "/api/v1//secrets"),
        ("GET", "/api%2fv1/secrets"),
        ("GET", "/%61pi/v1/secrets"),
        ("GET", f"{DEMO}/pods/..%2f..%2fother%2fsecrets"),
        ("GET", f"{DEMO}/pods/../secrets"),
        ("GET", f"{DEMO}/pods//../secrets"),
        ("GET", f"{DEMO}/pods/a%2fexec"),
        ("GET", f"{DEMO}%2fpods"),
        ("GET", f"{DEMO}/secrets/one%00"),
        ("GET", f"{DEMO}/secrets/one/../two"),
    ],
)
async def test_what_is_not_does_not(authenticating_proxy: AuthenticatingProxy, method: str, target: str) -> None:
    proxy = await opened(authenticating_proxy)
    code, body = await proxy.answer(lines(method, target), server_name=ALL)
    await proxy.turns(1)
    assert code in (400, 403)
    assert body.startswith(b'{"kind":"Status",')
    assert proxy.forwarded == b""


ELSEWHERE = [
    "/clusters/west",
    "/clusters/nowhere/api/v1/pods",
    "/clusters/own/../west/version",
    "/clusters/own%2f..%2fwest/version",
    "/clusters/%6Fwn/version",
    "/clusters/OWN/version",
    "/clusters//own/version",
    "//clusters/own/version",
    "/clusters/./own/version",
    "/clusters/own;x/version",
    "/clusters\\own/version",
    "/apis/cluster.karmada.io/v1alpha1/clusters/own/proxyx/version",
    "/apis/cluster.karmada.io/v1alpha1/clusters/own/version",
    "/apis/aggregated.kubeadmiral.io/v1alpha1/aggregations/own/proxy/../version",
    "/version",
    "/api/v1/pods",
    "*",
]


@pytest.mark.parametrize("target", ELSEWHERE)
async def test_another_way_to_a_cluster_is_none(authenticating_proxy: AuthenticatingProxy, target: str) -> None:
    proxy = await opened(authenticating_proxy)
    method = b"OPTIONS" if target == "*" else b"GET"
    code, _ = await proxy.answer(
        request(bearer(ALICE_TOKEN), host=ALL, target=target.encode(), method=method), server_name=ALL
    )
    assert code in (400, 403, 404)
    assert proxy.forwarded == b""
    if target.startswith("/clusters/"):  # which clusters there are is nobody else's business
        nobody = await proxy.answer(request(host=ALL, target=target.encode()), server_name=ALL)
        assert nobody == (401, UNAUTHORIZED)


async def test_a_cluster_below_a_cluster_is_that_clusters_own_affair(authenticating_proxy: AuthenticatingProxy) -> None:
    proxy = await opened(authenticating_proxy)
    await proxy.passes(lines("GET", "/clusters/west/version"), server_name=ALL)
    assert proxy.own.received.startswith(b"GET /clusters/west/version HTTP/1.1\r\n")
    assert proxy.west.received == b""


async def test_anonymous_paths_are_those_paths_and_no_others(authenticating_proxy: AuthenticatingProxy) -> None:
    proxy = authenticating_proxy
    anonymous = model.Authentication(name="corp", anonymous=model.Anonymous(enabled=True, paths=("/livez", "/version")))
    await proxy.serve(proxy.configuration(authentication=(anonymous, model.Authentication(name="guests"))))
    for target in ("/livez", "/livez?verbose=1", "/version"):
        await proxy.passes(request(target=target.encode()))
    forwarded = proxy.forwarded
    for target in (
        "/livez/",
        "/livez/x",
        "//livez",
        "/livez%2f..%2fapi",
        "/live%7a",
        "/api/v1/pods",
        "/livez;x",
        "/LIVEZ",
    ):
        await proxy.refuses(request(target=target.encode()), 401, UNAUTHORIZED)
    body = status(400, "BadRequest", "the request target has a fragment")
    await proxy.refuses(request(target=b"/livez#/api/v1/pods"), 400, body)
    assert proxy.forwarded == forwarded
