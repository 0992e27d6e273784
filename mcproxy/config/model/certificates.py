"""The section `certificates`."""

from __future__ import annotations

from dataclasses import dataclass

from mcproxy.config.model.common import PEMFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    name: str
    chain: PEMFile  # leaf first
    key: PEMFile
    server_names: tuple[str, ...]  # lower case; exact names, one-label wildcards or IP addresses
