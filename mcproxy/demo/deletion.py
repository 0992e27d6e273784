"""What a delete asks for, and what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

JSONDict = dict[str, Any]


@dataclass(frozen=True)
class DeleteOptions:
    """What a delete asks for, from query and body."""

    grace: int | None = None
    propagation: str = ""
    orphan_dependents: bool | None = None
    uid: str = ""
    resource_version: str = ""


@dataclass
class Deletion:
    """What a delete did: `object` is the answer if `whole`, and `gone` tells whether it is out of the store."""

    object: JSONDict
    gone: bool
    whole: bool = False
