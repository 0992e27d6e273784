"""Joins canaries of ingress-nginx to the ingress whose paths they have.

A canary has the host and paths of another object, and says which of their requests go to its own backends: those with a
header field of a value ("always" where none is given), else a share by weight. The header comes first, and "never"
keeps a request from the share.

Source: ingress-nginx, docs/user-guide/nginx-configuration/annotations.md, "Canary".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcproxy.importing.fragment import Fragment, Note
from mcproxy.importing.ingress.annotations import Canary


def join(fragments: Sequence[Fragment], canaries: Sequence[tuple[Fragment, Canary]]) -> list[Note]:
    """Change the entries of `fragments`, which are no canaries; return a note for each path without one there."""
    left_out = []
    for fragment, canary in canaries:
        for entry in fragment.sections.get("ingresses", ()):
            for rule in entry.get("rules", ()):
                for path in rule["paths"]:
                    if not _join(fragments, _namespace(entry), rule.get("host", ""), path, canary):
                        what = f"left out: it is a canary, and no ingress with its host has the path {path['path']}"
                        left_out.append(Note(fragment.origin, "spec.rules", what, fragment.place))
            if "defaultBackend" in entry:
                what = "left out: a canary of a default backend is not known to mcproxy"
                left_out.append(Note(fragment.origin, "spec.defaultBackend", what, fragment.place))
    return left_out


def _namespace(entry: dict[str, Any]) -> str:
    return str(entry["name"]).partition(".")[0]


def _join(fragments: Sequence[Fragment], namespace: str, host: str, path: dict[str, Any], canary: Canary) -> bool:
    for fragment in fragments:
        for entry in fragment.sections.get("ingresses", ()):
            for rule in entry.get("rules", ()) if _namespace(entry) == namespace else ():
                for main in rule["paths"]:
                    same = (main["path"], main["pathType"]) == (path["path"], path["pathType"])
                    if same and "backend" in main and "headers" not in main and rule.get("host", "") == host:
                        rule["paths"] += _divided(main, path["backend"], canary)
                        return True
    return False


def _divided(main: dict[str, Any], backend: dict[str, Any], canary: Canary) -> list[dict[str, Any]]:
    """Give `main` the shares, and return the paths for header fields that stand beside it."""
    own = main["backend"]
    beside = []
    if canary.header:
        beside.append({**main, "headers": {canary.header: canary.value or "always"}, "backend": backend})
        if not canary.value and canary.weight:
            beside.append({**main, "headers": {canary.header: "never"}})
    if canary.weight:
        weight = min(canary.weight, canary.total)
        del main["backend"]
        main["backends"] = [
            {"weight": canary.total - weight, "backend": own},
            {"weight": weight, "backend": backend},
        ]
    return beside
