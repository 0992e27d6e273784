"""YAML, and JSON over several lines (`pretty=true`), of whole bodies.

Only small bodies, in a thread: YAML of some megabytes costs seconds of processor time.
"""

from __future__ import annotations

import msgspec
import yaml

from mcproxy.kube.numbers import json_float

MAX_YAML = 256 * 1024
"""Bytes of JSON."""
MAX_PRETTY = 1024 * 1024
"""Bytes of JSON in one line."""
_VALUE = msgspec.json.Decoder(float_hook=json_float)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def to_yaml(body: bytes) -> bytes:
    """Return JSON as YAML with sorted keys, as sigs.k8s.io/yaml writes it. Raises msgspec's errors (ValueError)."""
    value = _VALUE.decode(body)
    return bytes(yaml.dump(value, Dumper=_DUMPER, encoding="utf-8", allow_unicode=True, default_flow_style=False))


def to_pretty(body: bytes) -> bytes:
    """Return JSON over several lines, as Go's MarshalIndent with two spaces; without a final newline."""
    return msgspec.json.format(body.rstrip(b"\n"), indent=2)
