"""Converts whole response bodies to YAML, or to indented JSON (`pretty=true`).

Convert only small bodies, in a thread: YAML of some megabytes takes seconds of CPU time.
"""

from __future__ import annotations

import msgspec
import yaml

from mcproxy.kube.numbers import json_float

MAX_YAML = 256 * 1024
"""Maximum bytes of JSON for a conversion to YAML."""
MAX_PRETTY = 1024 * 1024
"""Maximum bytes of unindented JSON for a conversion to indented JSON."""
_VALUE = msgspec.json.Decoder(float_hook=json_float)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def to_yaml(body: bytes) -> bytes:
    """Return JSON as YAML with sorted keys, as sigs.k8s.io/yaml writes it. Raises msgspec's errors (ValueError)."""
    value = _VALUE.decode(body)
    return bytes(yaml.dump(value, Dumper=_DUMPER, encoding="utf-8", allow_unicode=True, default_flow_style=False))


def to_pretty(body: bytes) -> bytes:
    """Return indented JSON, as Go's MarshalIndent with two spaces; without a final newline."""
    return msgspec.json.format(body.rstrip(b"\n"), indent=2)
