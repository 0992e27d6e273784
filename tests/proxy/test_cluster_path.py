"""Which member of an aggregate a target names."""

from __future__ import annotations

import pytest

from mcproxy.kube import requestinfo
from mcproxy.kube.status import StatusError
from mcproxy.proxy.cluster_path import prefix_of, split_aggregate

NAMES = frozenset({b"east", b"west"})
KARMADA = b"/apis/search.karmada.io/v1alpha1/proxying"


@pytest.mark.parametrize(
    ("target", "name", "below"),
    [
        (b"/api/v1/pods?watch=true", b"", b"/api/v1/pods?watch=true"),
        (b"/", b"", b"/"),
        (b"/clusters", b"", b"/clusters"),
        (b"/clusters/west/api/v1/pods?limit=1", b"west", b"/api/v1/pods?limit=1"),
        (b"/clusters/west", b"west", b"/"),
        (b"/clusters/west?x", b"west", b"/?x"),
        (b"/clusters/west/clusters/east/api", b"west", b"/clusters/east/api"),
        (b"/apis/cluster.karmada.io/v1alpha1/clusters/east/proxy/api/v1", b"east", b"/api/v1"),
        (b"/apis/cluster.karmada.io/v1alpha1/clusters/east/proxy", b"east", b"/"),
        (b"/apis/cluster.karmada.io/v1alpha1/clusters/east/proxy?a=b", b"east", b"/?a=b"),
        (b"/apis/aggregated.kubeadmiral.io/v1alpha1/aggregations/east/proxy/api/v1", b"east", b"/api/v1"),
        # objects of those systems, which a member may serve
        (b"/apis/cluster.karmada.io/v1alpha1/clusters/east", b"", b"/apis/cluster.karmada.io/v1alpha1/clusters/east"),
        (
            b"/apis/cluster.karmada.io/v1alpha1/clusters/east/status",
            b"",
            b"/apis/cluster.karmada.io/v1alpha1/clusters/east/status",
        ),
        (KARMADA + b"/karmada/proxy/api/v1/pods?limit=1", b"", b"/api/v1/pods?limit=1"),
        (KARMADA + b"/karmada/proxy", b"", b"/"),
        (KARMADA + b"/karmada/proxy?x", b"", b"/?x"),
        (KARMADA + b"/api/v1/pods", b"", b"/api/v1/pods"),
        (KARMADA, b"", b"/"),
        (KARMADA + b"/karmada/proxy/clusters/west/api/v1/pods", b"west", b"/api/v1/pods"),
        (KARMADA + b"x/karmada/proxy/api", b"", KARMADA + b"x/karmada/proxy/api"),
    ],
)
def test_split_aggregate(target: bytes, name: bytes, below: bytes) -> None:
    assert split_aggregate(target, NAMES) == (name, below)


@pytest.mark.parametrize(
    "target",
    [b"/clusters/south/api", b"/clusters//api", b"/apis/cluster.karmada.io/v1alpha1/clusters/south/proxy/api"],
)
def test_an_unknown_member_is_404(target: bytes) -> None:
    with pytest.raises(StatusError, match=r'clusters ".*" not found') as caught:
        split_aggregate(target, NAMES)
    assert caught.value.code == 404


def test_authorization_sees_the_inner_path() -> None:
    target = split_aggregate(KARMADA + b"/karmada/proxy/api/v1/namespaces/a/secrets/b", NAMES)[1]
    info = requestinfo.parse(b"GET", target)
    assert (info.verb, info.namespace, info.resource, info.name) == ("get", "a", "secrets", "b")


@pytest.mark.parametrize("below", [b"//api/v1/secrets", b"/../api/v1/secrets", b"/%2e%2e/api", b"/%61pi/v1//secrets"])
def test_what_could_be_read_in_more_than_one_way_is_refused_below_the_prefix_too(below: bytes) -> None:
    target = split_aggregate(KARMADA + b"/karmada/proxy" + below, NAMES)[1]
    with pytest.raises(StatusError) as caught:
        requestinfo.parse(b"GET", target)
    assert caught.value.code == 400


def test_the_prefix_for_redirects() -> None:
    whole = KARMADA + b"/karmada/proxy/clusters/west/api?x"
    assert prefix_of(whole, split_aggregate(whole, NAMES)[1]) == KARMADA + b"/karmada/proxy/clusters/west"
