"""Objects in which anything may stand anywhere: they are refused or left out, and nothing else happens."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.config.problem import ConfigErrors
from mcproxy.importing import karmada
from mcproxy.importing.fragment import Complete, Fragment, check, text_of
from mcproxy.importing.ingress import ingresses as ingress
from mcproxy.importing.ingress import placed_objects
from mcproxy.importing.kubegateway import upstream_cluster as kubegateway
from mcproxy.importing.kubegateway.upstream_cluster import KubeGatewayOptions, listener
from mcproxy.importing.object_files import UnusableError, objects_in
from tests.importing.builders import ANY, karmada_cluster, karmada_secret, registry, upstream_cluster

TEXTS = st.sampled_from(
    ["", "*", "-*", "${HOME}", "$$", "../../etc/passwd", "/etc/shadow", "a\nb: c", "\x1b[2J", "# x", "'\"", "a" * 300,
     "https://h", "http://user:pw@h", "https://h/../x?y#z", "https://[::1", "file:///etc/passwd", "\u2028", "true",
     "1e9"]
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS, st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(TEXTS, st.sampled_from(["name", "kind"])), inner, max_size=3),
    ),
    max_leaves=5,
)


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def changed(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    made = copy.deepcopy(document)
    target: Any = made
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return made


GATEWAY = upstream_cluster(
    flowControl={"flowControlSchemas": [{"name": "a", "maxRequestsInflight": {"max": 5}, "strategy": "local"}]},
    logging={"mode": "on"},
    dispatchPolicies=[
        {"rules": [{**ANY, "users": ["a"], "serviceAccounts": [{"namespace": "n", "name": "s"}]}],
         "upstreamSubset": ["https://10.0.0.1:6443"], "flowControlSchemaName": "a", "logMode": "off"},
    ],
)  # fmt: skip
GATEWAY["metadata"]["annotations"] = {"proxy.kubegateway.io/feature-gates": "Tracing=true"}
FLEET: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        karmada_cluster("east"),
        karmada_secret("east"),
        registry("r", {"apiVersion": "v1", "kind": "Pod", "namespace": "demo"}, clusterNames=["east"], exclude=["west"],
                 labelSelector={"matchExpressions": [{"key": "env", "operator": "In", "values": ["prod"]}]}),
    ],
}  # fmt: skip
FLEET["items"][0]["status"] = {
    "apiEnablements": [{"groupVersion": "v1", "resources": [{"name": "pods", "kind": "Pod"}]}]
}


def made_of(document: dict[str, Any], *, is_gateway: bool) -> tuple[list[Fragment], Complete]:
    objects = objects_in(document, "test")
    if is_gateway:
        fragments, _ = kubegateway.translate_all(objects, KubeGatewayOptions())
        return fragments, lambda found: (listener(found, KubeGatewayOptions()), *found)
    fragments, _, complete = karmada.translate_all(objects, "fleet")
    return fragments, complete


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_stands_in_an_upstream_cluster_is_refused_or_makes_a_good_configuration(data: st.DataObject) -> None:
    try_changes(GATEWAY, data)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_stands_in_karmadas_objects_is_refused_or_makes_a_good_configuration(data: st.DataObject) -> None:
    try_changes(FLEET, data)


def try_changes(plain: dict[str, Any], data: st.DataObject) -> None:
    document = plain
    for _ in range(data.draw(st.integers(1, 2))):
        document = changed(document, data.draw(st.sampled_from(list(places(document)))), data.draw(VALUES))
    try:
        fragments, complete = made_of(document, is_gateway=plain is GATEWAY)
        checked = check(fragments, complete)
    except UnusableError:
        return
    assert not [name for name in checked.files if "/" in name or name.startswith(".")]
    text = text_of(checked.fragments, "", [str(note) for note in checked.notes])
    assert all(line.isprintable() for line in text.split("\n"))
    assert "very-secret-token" not in text


SHOP = list(yaml.safe_load_all((Path(__file__).parent / "ingress" / "manifests" / "shop.yaml").read_text()))
KARMADA = list(yaml.safe_load_all((Path(__file__).parent / "ingress" / "manifests" / "karmada.yaml").read_text()))
MANIFESTS = {"shop": [SHOP[1]], "list": [SHOP[2]], "karmada": KARMADA}
PLACES = [(name, path) for name, documents in MANIFESTS.items() for path in places({"all": documents})]


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(PLACES), VALUES)
def test_anything_may_stand_anywhere_in_an_ingress(place: tuple[str, tuple[Any, ...]], value: Any) -> None:
    name, path = place
    documents = changed({"all": MANIFESTS[name]}, path, value)["all"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "f.json"
        texts = [json.dumps(each) for each in (documents if isinstance(documents, list) else [documents])]
        file.write_text("\n---\n".join(texts))
        try:
            found = placed_objects.read_placed([str(file)], "default")
            fragments, left_out, complete = ingress.translate_all(found, ingress.IngressOptions(clusters=("member1",)))
            checked = check(fragments, complete)
        except (UnusableError, ConfigErrors):
            return
        assert all(note.place.startswith(str(file)) for note in left_out)
        assert all("\n" not in str(note) for note in [*left_out, *checked.notes])
