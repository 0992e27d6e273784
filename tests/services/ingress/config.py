"""Ingresses of a configuration for tests, without a file."""

from __future__ import annotations

from typing import Any

from mcproxy.config.model import Ingress, IngressBackend, IngressPath, IngressRule, PathType, WeightedBackend


def backend(
    service: str, *, port: int | str = 8080, clusters: tuple[str, ...] = ("east",), **more: Any
) -> IngressBackend:
    return IngressBackend(namespace="demo", service=service, port=port, clusters=clusters, **more)


def path(text: str, service: str | IngressBackend | None, kind: PathType = PathType.PREFIX, **more: Any) -> IngressPath:
    """`service`: None without a backend, for a redirect or with `backends`."""
    return IngressPath(
        path=text, path_type=kind, backend=backend(service) if isinstance(service, str) else service, **more
    )


def shares(**weights: int) -> tuple[WeightedBackend, ...]:
    """Return backends by the names of their services, `_` for `-`, with their weights."""
    return tuple(
        WeightedBackend(weight=weight, backend=backend(name.replace("_", "-"))) for name, weight in weights.items()
    )


def rule(host: str, *paths: IngressPath) -> IngressRule:
    return IngressRule(host=host, paths=paths)


def ingress(
    name: str, *rules: IngressRule, default: str = "", listeners: tuple[str, ...] = ("web",), **more: Any
) -> Ingress:
    return Ingress(
        name=name,
        listeners=listeners,
        rules=rules,
        default_backend=backend(default) if default else None,
        **more,
    )
