"""The result of `config.load`: a configuration that was read and checked, with its warnings.

This module is separate from `config.load`, so that a process that only receives the result (`daemon.config_process`)
does not import the reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mcproxy.config.model import Config, Mark
from mcproxy.config.problem import Problem


@dataclass(frozen=True, slots=True)
class Location:
    """The position of a value in a file, and the path of its key."""

    mark: Mark
    key: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The loaded configuration. It can be pickled, because the daemon reads files in `daemon.config_process`."""

    config: Config
    warnings: tuple[Problem, ...] = ()  # sorted by position
    notes: tuple[Problem, ...] = ()
    """Remarks that `check` shows and the daemon does not log."""
    locations: Mapping[tuple[str, ...], Location] = field(default_factory=dict)
    """Locations by (section, name) of a named entry or (section, key) of a section without entries. Keys below have a
    third item; an API service has the key `apiServices[GROUP/VERSION]`."""

    def location(self, section: str, name: str, key: str = "") -> Location | None:
        """Return the location of an entry's key, or of the entry if the key is absent, for errors found later."""
        return self.locations.get((section, name, key)) or self.locations.get((section, name))
