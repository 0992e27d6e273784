"""An edit of an object's metadata, for every encoding of the object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

VersionChange = Callable[[str], str]
"""Returns the resourceVersion that replaces the given one; may raise StatusError."""


@dataclass(frozen=True, slots=True)
class MetadataEdit:
    """Changes of an ObjectMeta. Nothing else in the object changes.

    `labels` and `annotations`: the value to set, None to remove the key; a map that only held removed keys is removed
    with them. `resource_version` is called with each resourceVersion in the metadata; a missing one is not added.
    """

    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    resource_version: VersionChange | None = None
