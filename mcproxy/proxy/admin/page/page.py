"""The status page as HTML. Pure: from the status document alone, of which every value is escaped."""

from __future__ import annotations

import json
from collections.abc import Collection
from html import escape
from typing import Any

from mcproxy.proxy.admin.browsers import page_policy

_STYLE = ":root{color-scheme:light dark}body{font:1rem system-ui,sans-serif;margin:1rem}"
_SCRIPT = ""

POLICY = page_policy(_STYLE, _SCRIPT)


def render(status: dict[str, Any], paths: Collection[str]) -> str:
    """Return the page for a status document; it links to those of `paths` that are served."""
    links = "".join(f'<li><a href="{escape(path)}">{escape(path)}</a></li>' for path in sorted(paths))
    state = escape(json.dumps(status, indent=1, ensure_ascii=False))
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>mcproxy</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main><h1>mcproxy</h1><ul>{links}</ul><pre>{state}</pre></main></body></html>"
    )
