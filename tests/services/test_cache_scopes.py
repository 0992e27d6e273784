"""Which caches a configuration needs."""

from __future__ import annotations

from typing import Any

from mcproxy.config import model
from mcproxy.config.model.services import MAX_SERVICE_NAMESPACES as MAX_NAMESPACES
from mcproxy.services.cache_scopes import FollowedKind, backend_keys_of, scopes_of, uses_services

BOTH = (FollowedKind.SLICES, FollowedKind.SERVICES)


def backend(namespace: str = "demo", **fields: Any) -> model.IngressBackend:
    return model.IngressBackend(namespace=namespace, service="web", port=80, clusters=("east", "west"), **fields)


def ingress(*backends: model.IngressBackend) -> model.Ingress:
    paths = tuple(
        model.IngressPath(path=f"/{number}", path_type=model.PathType.EXACT, backend=each)
        for number, each in enumerate(backends)
    )
    return model.Ingress(name="web", listeners=("l",), rules=(model.IngressRule(paths=paths),))


def export(namespace: str, source: str = "east", to: str = "west") -> model.ServiceExport:
    return model.ServiceExport(name=namespace, namespace=namespace, service="web", from_clusters=(source,), to=(to,))


def test_nothing() -> None:
    assert not uses_services(model.Config())
    assert scopes_of(model.Config()) == {}


def test_an_ingress_needs_the_slices_and_services_of_its_namespaces() -> None:
    found = scopes_of(model.Config(ingresses=(ingress(backend(), backend("other")),)))
    both = frozenset({"demo", "other"})
    assert found == {name: dict.fromkeys(BOTH, both) for name in ("east", "west")}


def test_a_backend_by_the_api_server_is_asked_only_where_it_has_pods() -> None:
    config = model.Config(ingresses=(ingress(backend(via=model.Via.API_SERVER)),))
    assert uses_services(config)
    assert scopes_of(config) == {name: dict.fromkeys(BOTH, frozenset({"demo"})) for name in ("east", "west")}
    assert [key.cluster for key in backend_keys_of(config)] == ["east", "west"]


def test_backends_that_are_equal_are_one() -> None:
    config = model.Config(ingresses=(ingress(backend(), backend(retries=0)),))
    assert [key.cluster for key in backend_keys_of(config)] == ["east", "west"]


def test_an_export_needs_them_where_it_is_read_and_where_it_is_written() -> None:
    found = scopes_of(model.Config(service_exports=(export("a"),)))
    both = dict.fromkeys(BOTH, frozenset({"a"}))
    assert found == {"east": both, "west": {**both, FollowedKind.NAMESPACES: frozenset({""})}}


def test_many_namespaces_are_all() -> None:
    exports = tuple(export(f"ns-{number}") for number in range(MAX_NAMESPACES + 1))
    assert scopes_of(model.Config(service_exports=exports[:-1]))["east"][FollowedKind.SLICES] == {
        each.namespace for each in exports[:-1]
    }
    assert scopes_of(model.Config(service_exports=exports))["east"][FollowedKind.SLICES] == {""}


def test_discovery_needs_all_kinds_of_all_namespaces() -> None:
    discovery = model.ServiceDiscovery(enabled=True, clusters=("east",))
    found = scopes_of(model.Config(service_discovery=discovery, service_exports=(export("a"),)))
    assert found["east"] == dict.fromkeys(FollowedKind, frozenset({""}))
    assert found["west"] == {**dict.fromkeys(BOTH, frozenset({"a"})), FollowedKind.NAMESPACES: frozenset({""})}
