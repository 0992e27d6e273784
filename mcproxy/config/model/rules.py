"""Rules, which authorizers and dispatch policies have in the same form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mcproxy.config.model.keys import Key

Items = Annotated[tuple[str, ...], Key(omit_empty=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """RBAC-like; lists as written, each item checked: "*", plain, "-inverted", and globs where the field has them."""

    verbs: Items = ()
    users: Items = ()
    service_accounts: Annotated[tuple[tuple[str, str], ...], Key(omit_empty=True)] = ()  # (namespace, name)
    user_groups: Items = ()
    api_groups: Items = ()
    resources: Items = ()
    resource_names: Items = ()
    namespaces: Items = ()
    clusters: Items = ()
    non_resource_urls: Annotated[tuple[str, ...], Key("nonResourceURLs", omit_empty=True)] = ()
