"""The effective configuration as a document in the file's own form, and how it is written."""

from __future__ import annotations

from mcproxy.config.dump.document import FORMS, MASK, as_text, effective, resolved, to_json, to_yaml

__all__ = ["FORMS", "MASK", "as_text", "effective", "resolved", "to_json", "to_yaml"]
