"""Ingresses of a configuration for tests, without a file."""

from __future__ import annotations

from typing import Any

from mcproxy.config.model import Ingress, IngressBackend, IngressPath, IngressRule, PathType


def backend(
    service: str, *, port: int | str = 8080, clusters: tuple[str, ...] = ("east",), **more: Any
) -> IngressBackend:
    return IngressBackend(namespace="demo", service=service, port=port, clusters=clusters, **more)


def path(text: str, service: str | IngressBackend, kind: PathType = PathType.PREFIX) -> IngressPath:
    return IngressPath(
        path=text, path_type=kind, backend=service if isinstance(service, IngressBackend) else backend(service)
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
