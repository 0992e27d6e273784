"""The section `certificates`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mcproxy.config.model.common import PEMFile
from mcproxy.config.model.keys import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    name: str
    chain: Annotated[PEMFile, Key("certFile")]  # leaf first
    key: Annotated[PEMFile, Key("keyFile")]
    server_names: tuple[str, ...]  # lower case; exact names, one-label wildcards or IP addresses
