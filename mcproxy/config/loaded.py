"""What a configuration file says, once it is read and checked: the result of `config.load`.

Apart from it, so that a process that only gets the result (`daemon.config_process`) does not import the reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mcproxy.config.model import Config, Mark
from mcproxy.config.problem import Problem


@dataclass(frozen=True, slots=True)
class Location:
    """Where a value is written, and the path of its key."""

    mark: Mark
    key: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a file says. It can be pickled: the daemon reads files in another process (`daemon.config_process`)."""

    config: Config
    warnings: tuple[Problem, ...] = ()  # sorted by place
    locations: Mapping[tuple[str, ...], Location] = field(default_factory=dict)
    """Of each named entry, (section, name), of some settings, (section, key), and of the keys in either."""

    def location(self, section: str, name: str, key: str = "") -> Location | None:
        """Return where an entry's key is written, for errors found later: its entry's place if the key is absent."""
        return self.locations.get((section, name, key)) or self.locations.get((section, name))
