"""The objects of a template and what is said about them, as YAML with comments. Pure.

Everything that another server has said is in JSON strings, in comments too: one line, ASCII.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class Part:
    """One object, or with `content` None a remark alone. `is_example`: it is printed as a comment, to be completed."""

    about: tuple[str, ...]
    content: Mapping[str, Any] | None = None
    is_example: bool = False


@dataclass(frozen=True, slots=True)
class Template:
    """What is printed for one group-version; `refused` has a sentence for each object that was not taken."""

    title: str
    parts: tuple[Part, ...]
    refused: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The YAML documents."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"# {self.title}"
        for sentence in self.refused:
            yield f"# Refused: {sentence}."
        for part in self.parts:
            if part.content is not None and not part.is_example:
                yield "---"
            for sentence in part.about:
                yield f"# {sentence}"
            if part.content is not None:
                mark = "# " if part.is_example else ""
                if part.is_example:
                    yield "# ---"
                for line in _yaml(part.content):
                    yield mark + line


def quoted(value: object, most: int = 100) -> str:
    """Return a value as a JSON string of at most about `most` characters."""
    text = value if isinstance(value, str) else type(value).__name__
    return json.dumps(text if len(text) <= most else f"{text[:most]}…")


def cluster_role(name: str, rules: Sequence[Mapping[str, Any]], labels: Mapping[str, str] | None = None) -> Any:
    """Return a ClusterRole."""
    metadata = {"name": name, **({"labels": dict(labels)} if labels else {})}
    return {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": list(rules)}


def _yaml(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield block YAML, whose lists of strings and whose subjects are in one line each."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield f"{key}:"
            yield from (f"  {line}" for line in _yaml(value))
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield f"{key}:"
            for item in value:
                for number, line in enumerate(_yaml(item)):
                    yield f"{'  ' if number else '- '}{line}"
        else:
            yield f"{key}: {json.dumps(value)}"
