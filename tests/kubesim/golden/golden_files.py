"""Loads recordings, and normalizes both sides of a comparison."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import yaml

GOLDEN = Path(__file__).parents[2] / "golden"

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
AGE = re.compile(r"(\d+y)?(\d+d)?(\d+h)?(\d+m)?(\d+s)?")
TOKEN = re.compile(r"eyJhbGci[\w-]+\.[\w-]+\.[\w-]+")
HASH = re.compile(r"hash=[0-9A-F]{128}")
FINGERPRINT = re.compile(r"X509SHA256=[0-9a-f]{64}")
HEADERS = ("content-type", "retry-after", "warning", "vary", "x-content-type-options", "location", "content-encoding")


@functools.cache
def load(name: str) -> dict[str, Any]:
    """Return a recording by `folder/name`."""
    content: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return content


def names(folder: str) -> list[str]:
    """Return the recordings of a folder (and its subfolders) that are one exchange."""
    found = sorted(path.relative_to(GOLDEN).with_suffix("") for path in (GOLDEN / folder).rglob("*.json"))
    return [str(name) for name in found if "request" in (load(str(name)) if name.name != "script" else {})]


def normal(value: Any, *, revisions: bool, key: str = "") -> Any:
    """Return a JSON value without what differs between runs; `revisions` masks resourceVersions as well."""
    if isinstance(value, dict):
        return {name: normal(item, revisions=revisions, key=name) for name, item in value.items()}
    if isinstance(value, list):
        return [normal(item, revisions=revisions, key="cells" if key == "cells" else "") for item in value]
    if isinstance(value, str):
        return _text(value, key, revisions=revisions)
    return value


def _text(value: str, key: str, *, revisions: bool) -> str:
    if revisions and key in ("resourceVersion", "continue") and value:
        return f"<{key}>"
    if key == "cells" and value and AGE.fullmatch(value):
        return "<age>"
    value = re.sub(r"\(\d+[smhd]\w* ago\)", "(<age> ago)", value)
    if key == "message" and revisions:
        value = re.sub(r"\b\d{3}\b", "<n>", value)
    value = TIME.sub("<time>", value)
    value = HASH.sub("hash=<hash>", value)
    value = UID.sub("<uid>", value)
    value = TOKEN.sub("<token>", value)
    value = re.sub(r"127\.0\.0\.1:\d+|192\.0\.2\.10:\d+", "<host>", value)
    value = re.sub(r"eyJhbGciOi[\w.-]+", "<token>", value)
    return FINGERPRINT.sub("<fingerprint>", value)


def body_value(text: str, content_type: str, *, revisions: bool) -> Any:
    """Return a body for comparison, decoded if it is JSON or YAML."""
    if not text:
        return ""
    if "yaml" in content_type:
        return normal(yaml.load(text, Loader=yaml.BaseLoader), revisions=revisions)
    if "json" in content_type:
        return normal(json.loads(text), revisions=revisions)
    return _text(text, "", revisions=revisions)


def header_values(headers: list[Any]) -> dict[str, list[str]]:
    """Return the compared headers by lower-case name."""
    found: dict[str, list[str]] = {}
    for name, value in headers:
        if name.lower() in HEADERS:
            found.setdefault(name.lower(), []).append(_text(value, "", revisions=False))
        elif name.lower() in ("audit-id", "etag"):
            found[name.lower()] = ["<present>"]
    return found


def differences(expected: Any, actual: Any, path: str = "") -> list[str]:
    """Return the differences of two values, one line each."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        out = []
        for key in sorted({*expected, *actual}, key=str):
            if key not in actual:
                out.append(f"{path}.{key}: missing, expected {_short(expected[key])}")
            elif key not in expected:
                out.append(f"{path}.{key}: unexpected {_short(actual[key])}")
            else:
                out += differences(expected[key], actual[key], f"{path}.{key}")
        return out
    if isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            return [f"{path}: {len(actual)} items, expected {len(expected)}"]
        return [
            line
            for index, (left, right) in enumerate(zip(expected, actual, strict=True))
            for line in differences(left, right, f"{path}[{index}]")
        ]
    return [] if expected == actual else [f"{path}: {_short(actual)}, expected {_short(expected)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) < 300 else text[:300] + "…"
