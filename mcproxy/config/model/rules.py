"""Rules, which authorizers and dispatch policies have alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """RBAC-like; lists as written, each item checked: "*", plain, "-inverted", and globs where the field has them."""

    verbs: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    service_accounts: tuple[tuple[str, str], ...] = ()  # (namespace, name)
    user_groups: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = ()
