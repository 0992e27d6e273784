"""The effective configuration as a document in the file's own form, and how it is written."""

from __future__ import annotations

from mcproxy.config.dump.document import MASK, effective, resolved, to_json, to_yaml

__all__ = ["MASK", "effective", "resolved", "to_json", "to_yaml"]
