"""Translates KubeGateway's flow control schemas to flow controls."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mcproxy.importing.fragment import Fragment
from mcproxy.importing.object_files import Fields, UnusableError

_TYPES = ("exempt", "maxRequestsInflight", "tokenBucket")
_GLOBAL = ("globalMaxRequestsInflight", "globalTokenBucket")
_STRATEGIES = ("", "local", "globalAllocate", "globalCount")


class FlowControls:
    """The flow controls of one UpstreamCluster; their names begin with the cluster's, to be unique in the file."""

    def __init__(self, fragment: Fragment, cluster: str) -> None:
        self._fragment = fragment
        self._cluster = cluster
        self._names: dict[str, str] = {}
        self._refusing: set[str] = set()

    def translate(self, spec: Fields) -> None:
        """Add them to the fragment. Raises UnusableError for values that KubeGateway would not accept either."""
        written = spec.fields("flowControl")
        for other in written.others("flowControlSchemas"):
            self._fragment.note(other, "is not known to mcproxy")
        for number, schema in enumerate(written.items("flowControlSchemas")):
            name = schema.text("name")
            if not name or name in self._names:
                raise UnusableError(f"{schema.at('name')}: is {'a duplicate' if name else 'missing'}")
            entry = self._schema(schema)
            entry = {"name": f"{self._cluster}_{number + 1}_{_part(name)}", **entry}
            self._names[name] = entry["name"]
            if _refuses(entry):
                self._refusing.add(name)
            else:
                self._fragment.add("flowControls", entry)

    def leave_out_unused(self, used: Collection[str]) -> None:
        """Remove the flow controls that no policy names from the fragment: mcproxy warns of them."""
        for schema, name in self._names.items():
            if name not in used and schema not in self._refusing:
                what = f'"{schema}" is left out: no policy refers to it'
                self._fragment.note("spec.flowControl.flowControlSchemas", what)
        kept = [entry for entry in self._fragment.sections.pop("flowControls", ()) if entry["name"] in used]
        for entry in kept:
            self._fragment.add("flowControls", entry)

    def name_of(self, schema: str) -> str | None:
        return self._names.get(schema)

    def refuses_all(self, schema: str) -> bool:
        return schema in self._refusing

    def _schema(self, schema: Fields) -> dict[str, Any]:
        for other in schema.others("name", "strategy", *_TYPES, *_GLOBAL):
            self._fragment.note(other, "is not known to mcproxy")
        given = [key for key in _TYPES if schema.has(key)]
        strategy = schema.text("strategy")
        if strategy not in _STRATEGIES or len(given) > 1:
            raise UnusableError(
                f"{schema.path}: has {' and '.join(given) or 'no type'}, strategy {strategy or 'local'}"
            )
        for key, local in zip(_GLOBAL, _TYPES[1:], strict=True):
            if schema.has(key):
                what = "is not carried over: each mcproxy limits by itself; see `shared: true` and daemon.sharedState"
                if local not in given:
                    given.append(local)
                    what += "; its numbers are taken for one process"
                self._fragment.note(schema.at(key), what)
        if not given:
            raise UnusableError(f"{schema.path}: has no type of flow control")
        if given[0] == "exempt":
            return {"type": "Exempt"}
        numbers = schema.fields(given[0] if schema.has(given[0]) else _GLOBAL[_TYPES.index(given[0]) - 1])
        if given[0] == "maxRequestsInflight":
            most = numbers.integer("max")
            if most:
                what = (
                    "watches and other long-running requests are counted apart here: "
                    f"up to {most} of them beside up to {most} others"
                )
                self._fragment.note(numbers.at("max"), what)
            return {"type": "MaxRequestsInflight", "max": most, "maxLongRunning": most}
        return {"type": "TokenBucket", "qps": numbers.integer("qps"), "burst": numbers.integer("burst")}


def _refuses(entry: dict[str, Any]) -> bool:
    """Return whether a flow control refuses every request: mcproxy has no bucket that is always empty."""
    return entry.get("max") == 0 or entry.get("burst") == 0 or entry.get("qps") == 0


def _part(name: str) -> str:
    """Return the part of a name that may be in a name of mcproxy; the number before it makes it unique."""
    text = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in name[:40])
    return text.strip("._-") or "schema"
