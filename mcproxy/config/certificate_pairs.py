"""The certificates with a key in a configuration, each with its place, and a configuration with others in their place.

They are those of listeners (`certificates`), and the proxy's own: for clusters, front proxies, webhooks and Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

from mcproxy.certificate_blocks import load_certificates
from mcproxy.config.model import Certificate, Config, PEMFile
from mcproxy.config.server_names import names_in

Place = tuple[str, ...]
"""Section, name of the entry (or its number), and the fields below, such as ("clusters", "east", "credentials")."""

_SECTIONS = ("certificates", "clusters", "authentication", "daemon")


class Pair(NamedTuple):
    """A certificate chain, leaf first, and the key of the leaf."""

    chain: PEMFile
    key: PEMFile


def pairs_in(config: Config) -> dict[Place, Pair]:
    """Return the pairs of a configuration."""
    found: dict[Place, Pair] = {}

    def visit(place: Place, pair: Pair) -> Pair:
        found[place] = pair
        return pair

    _mapped_config(config, visit)
    return found


def with_pairs(config: Config, pairs: Mapping[Place, Pair]) -> Config:
    """Return the configuration with other pairs in some places; all that they do not change are the same objects.

    The server names of a certificate follow it if they were its own. Raises ValueError for one that cannot be read.
    """
    return _mapped_config(config, lambda place, pair: pairs.get(place, pair))


_Visit = Callable[[Place, Pair], Pair]


def _mapped_config(config: Config, visit: _Visit) -> Config:
    changed = {}
    for section in _SECTIONS:
        before = getattr(config, section)
        after = _mapped(before, (section,), visit)
        if after is not before:
            changed[section] = after
    return replace(config, **changed) if changed else config


def _mapped(node: Any, place: Place, visit: _Visit) -> Any:
    if type(node) is tuple:
        items = tuple(
            _mapped(each, (*place, getattr(each, "name", str(number))), visit) for number, each in enumerate(node)
        )
        return node if all(new is old for new, old in zip(items, node, strict=True)) else items
    if isinstance(node, PEMFile) or not is_dataclass(node) or isinstance(node, type):
        return node
    changed: dict[str, Any] = {}
    for field in fields(node):
        before = getattr(node, field.name)
        after = _mapped(before, (*place, field.name), visit)
        if after is not before:
            changed[field.name] = after
    name = "chain" if isinstance(node, Certificate) else "certificate"
    chain, key = getattr(node, name, None), getattr(node, "key", None)
    if isinstance(chain, PEMFile) and isinstance(key, PEMFile):
        pair = visit(place, Pair(chain, key))
        if pair != (chain, key):
            changed |= {name: pair.chain, "key": pair.key}
            if isinstance(node, Certificate) and node.server_names == _names(chain):
                changed["server_names"] = _names(pair.chain)
    return replace(node, **changed) if changed else node


def _names(chain: PEMFile) -> tuple[str, ...]:
    return names_in(load_certificates(chain.data)[0])
