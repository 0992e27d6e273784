"""Which API service a target belongs to: exactly what request info reads in it, and nothing that can be read twice."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcproxy.apiservices.api_service_registry import Registry
from mcproxy.config.model import APIService
from mcproxy.kube.requestinfo import parse
from mcproxy.kube.status import StatusError

OWNED = (("metrics.k8s.io", "v1beta1"), ("metrics.k8s.io", "v1"), ("a-b.example.com", "v2"))
REGISTRY = Registry(
    (APIService(group=group, version=version, cluster="c"), f"{group}/{version}") for group, version in OWNED
)


@pytest.mark.parametrize(
    ("target", "owner"),
    [
        (b"/apis/metrics.k8s.io/v1beta1", "metrics.k8s.io/v1beta1"),
        (b"/apis/metrics.k8s.io/v1beta1/", "metrics.k8s.io/v1beta1"),
        (b"/apis/metrics.k8s.io/v1beta1?timeout=32s", "metrics.k8s.io/v1beta1"),
        (b"/apis/metrics.k8s.io/v1/nodes", "metrics.k8s.io/v1"),
        (b"/apis/metrics.k8s.io/v1beta1/namespaces/a/pods/b/exec?command=ls", "metrics.k8s.io/v1beta1"),
        (b"/apis/metrics.k8s.io/v1beta1/watch/nodes", "metrics.k8s.io/v1beta1"),
        (b"/apis/a-b.example.com/v2/things/x/proxy/apis/metrics.k8s.io/v1", "a-b.example.com/v2"),
        (b"/apis/%6Detrics.k8s.io/v1beta1/nodes", "metrics.k8s.io/v1beta1"),
        (b"/apis/metrics%2ek8s.io/%76%31?a", "metrics.k8s.io/v1"),
    ],
)
def test_a_group_version_and_all_below_it_are_its_owners(target: bytes, owner: str) -> None:
    assert REGISTRY.find(target) == owner


@pytest.mark.parametrize(
    "target",
    [
        b"/",
        b"*",
        b"/api/v1/nodes",
        b"/apis",
        b"/apis/",
        b"/apis/metrics.k8s.io",
        b"/apis/metrics.k8s.io/",
        b"/apis/metrics.k8s.io?/v1",
        b"/apis/metrics.k8s.io/?v1",
        b"/apis/metrics.k8s.io/v2/nodes",
        b"/apis/metrics.k8s.io/v1beta10/nodes",
        b"/apis/metrics.k8s.io/v1beta/nodes",
        b"/apis/xmetrics.k8s.io/v1/nodes",
        b"/apis/a-b.example.com/v1/nodes",
        b"/openapi/v3/apis/metrics.k8s.io/v1",
        b"/clusters/east/apis/metrics.k8s.io/v1/nodes",
        # Go compares letters as they are, and reads no parameters in a path.
        b"/apis/Metrics.k8s.io/v1/nodes",
        b"/APIS/metrics.k8s.io/v1/nodes",
        b"/apis/metrics.k8s.io/V1/nodes",
        b"/apis/metrics.k8s.io/v1;a=b/nodes",
        b"/apis/metrics.k8s.io;a/v1/nodes",
        b"/apis/metrics.k8s.io./v1/nodes",
    ],
)
def test_all_else_is_the_backends(target: bytes) -> None:
    assert REGISTRY.find(target) is None


@pytest.mark.parametrize(
    "target",
    [
        b"//apis/metrics.k8s.io/v1/nodes",
        b"/apis//metrics.k8s.io/v1/nodes",
        b"/apis/metrics.k8s.io//v1/nodes",
        b"/apis/metrics.k8s.io/v1//nodes",
        b"/./apis/metrics.k8s.io/v1/nodes",
        b"/apis/./metrics.k8s.io/v1/nodes",
        b"/x/../apis/metrics.k8s.io/v1/nodes",
        b"/apis/apps/../metrics.k8s.io/v1/nodes",
        b"/apis/metrics.k8s.io/v1/../../apps/v1/deployments",
        b"/apis/metrics.k8s.io/v1/%2e%2e/%2E%2e/apps/v1/deployments",
        b"/apis/metrics.k8s.io/v1/..;/..;/apps/v1/deployments",
        b"/%61pis/metrics.k8s.io/v1/nodes",
        b"/apis%2Fmetrics.k8s.io/v1/nodes",
        b"/apis/metrics.k8s.io%2Fv1/nodes/x",
        b"/apis/metrics.k8s.io/v1%2Fnodes/x",
        b"/apis/%256Detrics.k8s.io/v1/nodes",
        b"/apis\\metrics.k8s.io\\v1\\nodes",
        b"/apis/metrics.k8s.io\\v1/nodes/x",
        b"/apis/metrics.k8s.io/v1%00/nodes",
        b"/apis/metrics.k8s.io/v1%/nodes",
    ],
)
def test_what_two_parsers_could_read_differently_is_refused_whoever_it_would_go_to(target: bytes) -> None:
    with pytest.raises(StatusError) as caught:
        parse(b"GET", target)
    assert caught.value.code == 400


GROUPS = ["metrics.k8s.io", "metrics%2ek8s.io", "%6Detrics.k8s.io", "Metrics.k8s.io", "a-b.example.com"]
VERSIONS = ["v1", "v2", "v1beta1", "%76%31", "V1"]
SIGNS = ["/", "/", "//", "%2F", "%2f", "..", ".", "%2e%2e", "%5C", "\\", ";", "?", "%3F", "#", "%25", "%", "%00", "*"]
WORDS = ["apis", "api", "%61pis", "APIS", "nodes", "x", "watch", "proxy", "clusters"]
PIECES = st.sampled_from([*GROUPS, *VERSIONS, *SIGNS, *WORDS])


@given(st.one_of(st.lists(PIECES, max_size=12), st.lists(PIECES, max_size=6).map(lambda some: ["/apis/", *some])))
@example(["/apis/", "metrics.k8s.io", "/", "v1", "/", "nodes"])
@example(["/apis/", "metrics%2ek8s.io", "/", "%76%31"])
def test_the_owner_is_that_of_the_group_version_which_is_authorized(pieces: list[str]) -> None:
    target = "".join(pieces).encode()
    try:
        info = parse(b"GET", target)
    except StatusError:
        return  # nobody gets it
    if info.is_resource:
        read = (info.group, info.version) if target.startswith(b"/apis/") else ("", info.version)
    else:
        segments = [unquote(segment) for segment in target.decode().partition("?")[0].split("/")]
        read = (segments[2], segments[3]) if segments[:2] == ["", "apis"] and len(segments) > 3 else ("", "")
    assert REGISTRY.find(target) == ("/".join(read) if read in OWNED else None)
