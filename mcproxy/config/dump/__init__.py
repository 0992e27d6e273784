"""The effective configuration as a document in the file's own form, and how it is written."""

from __future__ import annotations

from mcproxy.config.dump.document_text import to_json, to_yaml
from mcproxy.config.dump.effective import FORMS, MASK, as_text, effective, resolved

__all__ = ["FORMS", "MASK", "as_text", "effective", "resolved", "to_json", "to_yaml"]
