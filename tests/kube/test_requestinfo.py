"""What a request is about, as kube-apiserver's RequestInfoFactory has it, and what is refused where it would guess."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcproxy.kube.requestinfo import parse, timeout_parameter
from mcproxy.kube.status import StatusError
from tests.support.attributes import attributes_of


def about(line: str) -> dict[str, Any]:
    """The fields that are not empty."""
    method, _, target = line.partition(" ")
    info = parse(method.encode(), target.encode())
    fields = {
        name: value for name, value in attributes_of(info).items() if name not in ("path", "is_resource", "label")
    }
    if info.request_verb == info.verb:
        del fields["request_verb"]
    return {name: value for name, value in fields.items() if value}


def resource(verb: str, name: str, /, **fields: Any) -> dict[str, Any]:
    return {"verb": verb, "version": "v1", "resource": name, **fields}


POD: dict[str, Any] = {"namespace": "a", "name": "b"}

# The rows of Kubernetes' own requestinfo_test.go, and then more.
ROWS: list[tuple[str, dict[str, Any]]] = [
    ("GET /api/v1/namespaces", resource("list", "namespaces")),
    ("GET /api/v1/namespaces/other", resource("get", "namespaces", namespace="other", name="other")),
    ("GET /api/v1/namespaces/other/pods", resource("list", "pods", namespace="other")),
    ("GET /api/v1/namespaces/other/pods/foo", resource("get", "pods", namespace="other", name="foo")),
    ("HEAD /api/v1/namespaces/other/pods/foo", resource("get", "pods", namespace="other", name="foo")),
    ("GET /api/v1/pods", resource("list", "pods")),
    ("HEAD /api/v1/pods", resource("list", "pods")),
    ("GET /api/v1/pods/", resource("list", "pods")),
    ("POST /api/v1/pods", resource("create", "pods")),
    ("DELETE /api/v1/namespaces/a/pods", resource("deletecollection", "pods", namespace="a")),
    ("DELETE /api/v1/namespaces/a/pods/b", resource("delete", "pods", **POD)),
    ("DELETE /api/v1/namespaces", resource("deletecollection", "namespaces")),
    ("PUT /api/v1/namespaces/a/pods/b", resource("update", "pods", **POD)),
    ("PATCH /api/v1/namespaces/a/pods/b/status", resource("patch", "pods", subresource="status", **POD)),
    ("OPTIONS /api/v1/pods", {"version": "v1", "resource": "pods"}),
    # namespaces' own subresources
    (
        "PUT /api/v1/namespaces/a/status",
        resource("update", "namespaces", namespace="a", name="a", subresource="status"),
    ),
    (
        "PUT /api/v1/namespaces/a/finalize",
        resource("update", "namespaces", namespace="a", name="a", subresource="finalize"),
    ),
    # groups
    ("GET /apis/apps/v1/deployments", resource("list", "deployments", group="apps")),
    (
        "GET /apis/apps/v1/namespaces/a/deployments/b/scale",
        resource("get", "deployments", group="apps", subresource="scale", **POD),
    ),
    (
        "GET /apis/example.com/v1/namespaces/a",
        resource("get", "namespaces", group="example.com", namespace="a", name="a"),
    ),
    # watch
    ("GET /api/v1/pods?watch=true", resource("watch", "pods", long_running=True)),
    ("GET /api/v1/pods?watch=1&timeoutSeconds=5", resource("watch", "pods", long_running=True)),
    ("GET /api/v1/pods?watch", resource("watch", "pods", long_running=True)),
    ("GET /api/v1/pods?watch=", resource("watch", "pods", long_running=True)),
    ("GET /api/v1/pods?watch=maybe", resource("watch", "pods", long_running=True)),
    ("GET /api/v1/pods?w%61tch=true", resource("watch", "pods", long_running=True)),
    ("GET /api/v1/pods?watch=false", resource("list", "pods")),
    ("GET /api/v1/pods?watch=FALSE", resource("list", "pods")),
    ("GET /api/v1/pods?watch=0", resource("list", "pods")),
    ("GET /api/v1/pods?watch=%30", resource("list", "pods")),
    ("GET /api/v1/pods?watch=0&watch=1", resource("list", "pods")),
    ("GET /api/v1/pods?watch=1;a=b", resource("list", "pods")),
    ("GET /api/v1/pods?watch=%zz", resource("list", "pods")),
    ("GET /api/v1/pods?unwatch=1", resource("list", "pods")),
    ("POST /api/v1/pods?watch=1", resource("create", "pods")),
    ("GET /api/v1/namespaces/a/pods/b?watch=1", resource("get", "pods", **POD)),
    ("GET /api/v1/watch/pods", resource("watch", "pods", long_running=True)),
    ("GET /api/v1/watch/namespaces/a/pods/b", resource("watch", "pods", long_running=True, **POD)),
    (
        "GET /apis/apps/v1/watch/namespaces/a/deployments",
        resource("watch", "deployments", group="apps", namespace="a", long_running=True),
    ),
    # selected by name
    ("GET /api/v1/pods?fieldSelector=metadata.name%3Db", resource("list", "pods", name="b")),
    ("GET /api/v1/pods?fieldSelector=metadata.name=b&watch=1", resource("watch", "pods", name="b", long_running=True)),
    ("GET /api/v1/pods?fieldSelector=metadata.name==b", resource("list", "pods", name="b")),
    ("GET /api/v1/pods?fieldSelector=spec.nodeName=n,metadata.name=b", resource("list", "pods", name="b")),
    ("GET /api/v1/pods?fieldSelector=metadata.name!=b", resource("list", "pods")),
    ("GET /api/v1/pods?fieldSelector=metadata.namespace=b", resource("list", "pods")),
    ("GET /api/v1/pods?fieldSelector=%20metadata.name=b", resource("list", "pods")),
    ("GET /api/v1/pods?fieldSelector=metadata.name=a/b", resource("list", "pods")),
    ("GET /api/v1/pods?fieldSelector=metadata.name=..", resource("list", "pods")),
    ("GET /api/v1/pods?fieldSelector=a=b&fieldSelector=metadata.name=b", resource("list", "pods")),
    # An escaped comma is part of a value: these select everything, and demand no name.
    ("GET /api/v1/pods?fieldSelector=metadata.namespace!=a\\,metadata.name=b", resource("list", "pods")),
    (
        "GET /api/v1/pods?fieldSelector=metadata.namespace!=a%5C,metadata.name=b&watch=1",
        resource("watch", "pods", long_running=True),
    ),
    ("DELETE /api/v1/pods?fieldSelector=metadata.namespace!=a\\,metadata.name=b", resource("deletecollection", "pods")),
    ("GET /api/v1/pods?fieldSelector=a=b\\x,metadata.name=b", resource("list", "pods")),
    (
        "DELETE /api/v1/namespaces/a/pods?fieldSelector=metadata.name=b",
        resource("deletecollection", "pods", **POD),
    ),
    ("GET /api/v1/watch/pods?fieldSelector=metadata.name=b", resource("watch", "pods", long_running=True)),
    # long-running
    ("GET /api/v1/namespaces/a/pods/b/log", resource("get", "pods", subresource="log", **POD)),
    (
        "GET /api/v1/namespaces/a/pods/b/log?follow=true",
        resource("get", "pods", subresource="log", long_running=True, **POD),
    ),
    ("GET /api/v1/namespaces/a/pods/b/log?follow=false", resource("get", "pods", subresource="log", **POD)),
    (
        "POST /api/v1/namespaces/a/pods/b/exec?command=sh",
        resource("create", "pods", subresource="exec", long_running=True, **POD),
    ),
    # Opening them is a `create` by any method; golden/websocket/exec-only-verb-*: a 1.36 apiserver asks for both.
    (
        "GET /api/v1/namespaces/a/pods/b/exec?command=sh",
        resource("create", "pods", subresource="exec", long_running=True, request_verb="get", **POD),
    ),
    (
        "HEAD /api/v1/namespaces/a/pods/b/e%78ec",
        resource("create", "pods", subresource="exec", long_running=True, request_verb="get", **POD),
    ),
    (
        "DELETE /api/v1/namespaces/a/pods/b/exec",
        resource("create", "pods", subresource="exec", long_running=True, request_verb="delete", **POD),
    ),
    (
        "GET /api/v1/watch/namespaces/a/pods/b/exec",
        resource("create", "pods", subresource="exec", long_running=True, request_verb="watch", **POD),
    ),
    # A kubelet opens the same streams by GET, below a subresource that readers of everything may get.
    *(
        (
            f"{method} /api/v1/nodes/n/proxy/{path}",
            resource("create", "nodes", name="n", subresource="proxy", long_running=True, request_verb=verb),
        )
        for method, path, verb in (
            ("GET", "exec/a/b/c?command=sh", "get"),
            ("GET", "portForward/a/b", "get"),
            ("GET", "%65xec/a/b/c", "get"),
            ("GET", "/exec/a/b/c", "get"),
            ("GET", "%2Fattach/a/b/c", "get"),
            ("PUT", "cri/exec/token", "update"),
        )
    ),
    *(
        (
            f"GET /api/v1/{node}/proxy/{path}",
            resource("get", node.split("/")[-2], subresource="proxy", long_running=True, **fields),
        )
        for node, path, fields in (
            ("nodes/n", "metrics", {"name": "n"}),
            ("nodes/n", "execute", {"name": "n"}),
            ("nodes/n", "", {"name": "n"}),
            ("namespaces/a/pods/b", "exec", POD),
        )
    ),
    (
        "GET /apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/b/portforward",
        resource(
            "get",
            "virtualmachineinstances",
            group="subresources.kubevirt.io",
            subresource="portforward",
            long_running=True,
            **POD,
        ),
    ),
    (
        "GET /api/v1/namespaces/a/pods/b/attach",
        resource("create", "pods", subresource="attach", long_running=True, request_verb="get", **POD),
    ),
    (
        "GET /api/v1/namespaces/a/pods/b/portforward",
        resource("create", "pods", subresource="portforward", long_running=True, request_verb="get", **POD),
    ),
    # proxy: what follows is somebody else's
    (
        "GET /api/v1/namespaces/a/services/b/proxy/x//y%2F..z",
        resource("get", "services", subresource="proxy", long_running=True, **POD),
    ),
    ("GET /api/v1/nodes/n/proxy/metrics", resource("get", "nodes", subresource="proxy", name="n", long_running=True)),
    ("POST /api/v1/proxy/namespaces/a/pods/b/x", resource("proxy", "pods", long_running=True, **POD)),
    (
        "GET /api/v1/namespaces/a/pods/b/ephemeralcontainers/x/y",
        resource("get", "pods", subresource="ephemeralcontainers", **POD),
    ),
    # names are decoded
    ("GET /api/v1/namespaces/a/pods/b%20c", resource("get", "pods", namespace="a", name="b c")),
    (
        "GET /apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode",
        resource("get", "clusterroles", group="rbac.authorization.k8s.io", name="system:node"),
    ),
    # not about a resource
    ("GET /", {"verb": "get"}),
    ("GET /api", {"verb": "get"}),
    ("GET /api/", {"verb": "get"}),
    ("GET /api/v1", {"verb": "get"}),
    ("GET /api/v1/", {"verb": "get"}),
    ("GET /apis", {"verb": "get"}),
    ("GET /apis/apps", {"verb": "get"}),
    ("GET /apis/apps/v1", {"verb": "get"}),
    ("GET /apis/apps/v1/", {"verb": "get"}),
    ("POST /healthz", {"verb": "post"}),
    ("GET /version?watch=1", {"verb": "get"}),
    ("GET /openapi/v3/apis/apps/v1?hash=1", {"verb": "get"}),
    ("GET /foo//bar%2Fbaz", {"verb": "get"}),
    ("OPTIONS *", {"verb": "options"}),
]


@pytest.mark.parametrize(("line", "expected"), ROWS, ids=[row[0] for row in ROWS])
def test_table(line: str, expected: dict[str, Any]) -> None:
    assert about(line) == expected


REFUSED = [
    "/api/v1/watch",
    "/api/v1/watch/",
    "/api/v1/proxy",
    "/api//v1/pods",
    "//api/v1/pods",
    "/api/v1//pods",
    "/api/v1/pods//",
    "/api/v1/namespaces//pods",
    "/apis//v1/pods",
    "/apis/apps//deployments",
    "/api/v1/./pods",
    "/api/v1/../v1/pods",
    "/api/v1/pods/..",
    "/..",
    "/.",
    "/version/..%2fapi/v1/pods",
    "/version/%2e%2e/api/v1/pods",
    "/version/%2E./api/v1/pods",
    "/a\\..\\b",
    "/a%5C..%5Cb",
    "/api%2Fv1/pods",
    "/api%2Fv1%2Fpods",
    "/%2Fapi/v1/pods",
    "/%61pi/v1/pods",
    "/%61pi",
    "/api/v%31%2Fpods",
    "/apis/apps%2Fv1/deployments",
    "/clusters%2Feast/api",
    "//clusters/east",
    "/api/v1/namespaces/a%2Fb/pods",
    "/api/v1/namespaces/a/pods%2Fb",
    "/api/v1/namespaces/a/pods/b%2Fexec",
    "/api/v1/namespaces/a/pods/b/exec%2Fc",
    "/api/v1/namespaces/a%252Fb/pods",
    "/api/v1/namespaces/a%5Cb/pods",
    "/api/v1/namespaces/a%00b/pods",
    "/api/v1/namespaces/a/pods/b/log//c",
    "/foo%zz",
    "/foo%",
    "/foo%4",
    "/api/v1/namespaces/a%zz/pods",
    "/api/v1/namespaces/a/pods/b/proxy/%g0",
]


@pytest.mark.parametrize("target", REFUSED)
def test_what_two_readers_could_read_in_two_ways_is_400(target: str) -> None:
    with pytest.raises(StatusError) as caught:
        parse(b"GET", target.encode())
    assert (caught.value.code, caught.value.reason) == (400, "BadRequest")


SEGMENTS = (
    "api apis v1 apps namespaces a pods b exec proxy watch status clusters x "
    ". .. %2e %2F %61pi a%2Fb %25 %00 \\ %5c %zz % n%61mespaces %77atch prox%79 %65xec %73tatus"
)
segments = st.sampled_from([*SEGMENTS.split(" "), ""])


def plain(path: str) -> list[str]:
    """The path as a reader sees it that decodes and cleans before it splits."""
    cleaned: list[str] = []
    for part in unquote(path).replace("\\", "/").split("/"):
        if part == "..":
            del cleaned[-1:]
        elif part not in ("", "."):
            cleaned.append(part)
    return cleaned


@given(st.lists(segments, max_size=8), st.sampled_from([b"GET", b"POST", b"DELETE", b"FROB"]))
@example(["api%2Fv1%2Fpods"], b"GET")
@example(["%25"], b"GET")
@example(["api", "v1", "n%61mespaces", "a", "pods", "b"], b"GET")
@example(["apis", "apps", "v1", "%77atch", "pods"], b"GET")
@example(["api", "v1", "prox%79", "nodes", "a"], b"GET")
@example(["api", "v1", "watch", "%6eamespaces", "a", "pods"], b"GET")
def test_a_path_that_reads_differently_when_decoded_or_cleaned_is_refused(parts: list[str], method: bytes) -> None:
    path = "/" + "/".join(parts)
    try:
        info = parse(method, path.encode())
    except StatusError:
        return
    if info.subresource == "proxy" or info.verb == "proxy":
        return  # what stands below is judged by whoever serves it
    theirs = plain(path)
    again = parse(method, ("/" + "/".join(theirs)).replace("%", "%25").encode())
    fields = ("is_resource", "group", "version", "resource", "namespace", "name", "subresource", "verb")
    assert [getattr(info, field) for field in fields] == [getattr(again, field) for field in fields]


@given(st.binary(max_size=40), st.text("&=%;+watchfieldSelector.nm0", max_size=30))
def test_junk_is_never_anything_but_a_status_error(path: bytes, query: str) -> None:
    for prefix in (b"/", b"/api/v1/", b"/apis/a/v1/namespaces/"):
        try:
            info = parse(b"GET", prefix + path.replace(b"?", b"") + b"?" + query.encode())
        except StatusError as refusal:
            assert refusal.code == 400  # noqa: PT017 - not every junk is refused
        else:
            assert repr(info)


@pytest.mark.parametrize(
    ("target", "value"),
    [
        (b"/api/v1/pods?timeout=5s", "5s"),
        (b"/api/v1/pods?a=b&timeout=5s&timeout=6s", "5s"),
        (b"/api/v1/pods?timeout=", ""),
        (b"/api/v1/pods?mytimeout=5s", None),
        (b"/api/v1/pods?timeoutSeconds=5", None),
        (b"/timeout=5s", None),
        (b"/", None),
    ],
)
def test_timeout(target: bytes, value: str | None) -> None:
    assert timeout_parameter(target) == value


@pytest.mark.parametrize(
    ("target", "label"),
    [
        (b"/api/v1/namespaces/a/pods/b/log", "pods/log"),
        (b"/apis/apps/v1/namespaces/a/deployments/b/scale", "deployments.apps/scale"),
        (b"/apis/apps/v1/deployments", "deployments.apps"),
        (b"/healthz", ""),
    ],
)
def test_a_resource_has_its_name_for_logs(target: bytes, label: str) -> None:
    assert parse(b"GET", target).label == label
