"""Lists: pages of one snapshot, past states, and continue tokens."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubesim.apimachinery.resources import ResourceInfo
from kubesim.apimachinery.status import StatusError
from kubesim.cluster import ClusterOptions, SimulatedCluster
from kubesim.storage import list_watch
from kubesim.storage.list_watch import Page
from mcproxy.kube.list_options import ListOptions

CONFIG_MAPS = ("", "configmaps")


def filled(*names: str) -> SimulatedCluster:
    """Return a cluster with ConfigMaps by `namespace/name`."""
    cluster = SimulatedCluster("east", options=ClusterOptions(too_large_wait_seconds=0.0))
    for name in names:
        put(cluster, name)
    return cluster


def put(cluster: SimulatedCluster, name: str, **data: str) -> None:
    namespace, _, own = name.partition("/")
    labels = {"parity": "odd" if int(own[-1], 36) % 2 else "even"}
    metadata = {"namespace": namespace, "name": own, "labels": labels}
    cluster.store.put(CONFIG_MAPS, {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": data})


def resource(cluster: SimulatedCluster) -> ResourceInfo:
    found = cluster.resources.preferred(*CONFIG_MAPS)
    assert found is not None
    return found


def read(cluster: SimulatedCluster, namespace: str = "", **options: Any) -> Page:
    return asyncio.run(list_watch.list_page(cluster.store, resource(cluster), namespace, ListOptions(**options)))


def names(page: Page) -> list[str]:
    return [f"{item['metadata']['namespace']}/{item['metadata']['name']}" for item in page.items]


def test_a_list_is_in_the_order_of_keys_and_of_one_namespace() -> None:
    cluster = filled("b/1", "a/2", "a/1", "a-b/1")
    assert names(read(cluster)) == ["a-b/1", "a/1", "a/2", "b/1"]
    assert names(read(cluster, "a")) == ["a/1", "a/2"]
    assert read(cluster).revision == cluster.store.revision


def test_pages_are_of_one_state_whatever_happens_in_between() -> None:
    cluster = filled("a/1", "a/2", "a/3", "b/1")
    first = read(cluster, limit=2)
    assert (names(first), first.remaining) == (["a/1", "a/2"], 2)
    cluster.store.delete(CONFIG_MAPS, "a", "3")
    put(cluster, "a/4")
    second = read(cluster, limit=2, continue_token=first.continue_token)
    assert (names(second), second.continue_token, second.remaining) == (["a/3", "b/1"], "", None)
    assert second.revision == first.revision


def test_how_many_remain_is_not_said_with_a_selector() -> None:
    cluster = filled("a/1", "a/2", "a/3", "a/5")
    page = read(cluster, limit=1, label_selector="parity=odd")
    assert (names(page), page.remaining) == (["a/1"], None)
    assert page.continue_token
    rest = read(cluster, label_selector="parity=odd", continue_token=page.continue_token)
    assert names(rest) == ["a/3", "a/5"]


def test_a_limit_is_ignored_for_revision_0() -> None:
    assert len(read(filled("a/1", "a/2"), limit=1, resource_version="0").items) == 2


def test_an_exact_list_is_of_the_past() -> None:
    cluster = filled("a/1", "a/2")
    before = str(cluster.store.revision)
    put(cluster, "a/1", x="new")
    cluster.store.delete(CONFIG_MAPS, "a", "2")
    page = read(cluster, resource_version=before, match="Exact")
    assert (names(page), page.items[0]["data"], page.revision) == (["a/1", "a/2"], {}, int(before))
    assert names(read(cluster, resource_version=before, match="NotOlderThan")) == ["a/1"]


def test_a_revision_that_is_not_there_yet_is_504() -> None:
    with pytest.raises(StatusError) as caught:
        read(filled("a/1"), resource_version="99")
    assert caught.value.code == 504
    assert caught.value.details is not None
    assert caught.value.details["causes"][0]["reason"] == "ResourceVersionTooLarge"


def test_after_a_compaction_a_list_can_go_on_inconsistently() -> None:
    cluster = filled("a/1", "a/2", "a/3")
    first = read(cluster, limit=1)
    put(cluster, "a/4")
    cluster.store.compact()
    with pytest.raises(StatusError) as caught:
        read(cluster, limit=1, continue_token=first.continue_token)
    assert (caught.value.code, caught.value.reason) == (410, "Expired")
    token = caught.value.metadata["continue"]
    rest = read(cluster, continue_token=token)
    assert (names(rest), rest.revision) == (["a/2", "a/3", "a/4"], cluster.store.revision)
    with pytest.raises(StatusError, match="too old"):
        read(cluster, resource_version=str(first.revision), match="Exact")


def test_a_token_goes_with_no_revision_but_0() -> None:
    cluster = filled("a/1", "a/2")
    token = read(cluster, limit=1).continue_token
    assert names(read(cluster, continue_token=token, resource_version="0")) == ["a/2"]
    with pytest.raises(StatusError, match="specifying resource version is not allowed when using continue"):
        read(cluster, continue_token=token, resource_version="1")


KEYS = st.lists(st.from_regex(r"[ab]/[a-z0-9]{1,2}", fullmatch=True), unique=True, max_size=12)


@given(KEYS, st.integers(min_value=1, max_value=5), st.sampled_from(["", "a", "b"]))
def test_pages_together_are_the_whole_list(keys: list[str], limit: int, namespace: str) -> None:
    cluster = filled(*keys)
    found: list[str] = []
    token = ""
    while True:
        page = read(cluster, namespace, limit=limit, continue_token=token)
        assert len(page.items) <= limit
        found += names(page)
        token = page.continue_token
        if not token:
            break
        assert page.remaining == len(read(cluster, namespace).items) - len(found)
    assert found == names(read(cluster, namespace))


@given(st.integers(min_value=-1, max_value=2**63), st.from_regex(r"[a-z]{1,5}(/[a-z]{1,5})?\x00?", fullmatch=True))
def test_tokens_are_read_back(revision: int, start: str) -> None:
    token = list_watch.encode_token(revision, start)
    assert "=" not in token
    assert list_watch.decode_token(token) == (revision, start)


@given(st.text(max_size=20))
def test_any_text_is_a_token_or_a_400(text: str) -> None:
    with pytest.raises(StatusError) as caught:
        list_watch.decode_token(text)
    assert caught.value.code == 400


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("a!b", "illegal base64 data at input byte 1"),
        (encoded({"v": "v0", "rv": 1, "start": "a"}), "server does not recognize this encoded version v0"),
        (encoded([1]), "server does not recognize this encoded version"),
        (encoded({"v": list_watch.TOKEN_VERSION, "rv": 1, "start": "a/../b"}), "invalid start"),
        (encoded({"v": list_watch.TOKEN_VERSION, "rv": 1}), "invalid start"),
        (encoded({"v": list_watch.TOKEN_VERSION, "rv": "x", "start": "a"}), "field .rv of type int64"),
    ],
)
def test_bad_tokens_are_400(token: str, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        list_watch.decode_token(token)
    assert caught.value.code == 400
    assert caught.value.message.startswith("invalid continue token: continue key is not valid: ")
    assert message in caught.value.message


def test_items_of_builtin_lists_do_not_say_what_they_are() -> None:
    cluster = filled("a/1")
    whole = list_watch.envelope(resource(cluster), read(cluster))
    assert (whole["kind"], whole["apiVersion"]) == ("ConfigMapList", "v1")
    assert not {"kind", "apiVersion"} & set(whole["items"][0])
    assert whole["metadata"] == {"resourceVersion": str(cluster.store.revision)}
