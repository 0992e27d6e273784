"""Makes HTML of which every text is escaped: only what this module has made itself is taken as markup.

Texts come from files, clusters and clients. Besides what HTML requires, characters that cannot be seen are replaced:
control characters, and those that turn the direction of what follows.
"""

from __future__ import annotations

import re
from html import escape

_VOID = frozenset({"br", "input", "meta", "path", "line"})
# Where a line may end besides at spaces and hyphens: within no word, no number, no address.
_BREAKS = re.compile(r"(?<=[/@_;=&?+])(?=\w)|(?<=[.:,])(?=[^\W\d])")


class Markup(str):
    """HTML that is safe as it is."""

    __slots__ = ()


Content = object
"""Markup, or anything else, which is shown as text; None is nothing."""

EMPTY = Markup("")


def text(value: Content) -> Markup:
    """Return `value` as markup."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return EMPTY
    plain = str(value)
    if not plain.isprintable():
        plain = "".join([char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in plain])
    return Markup(escape(plain, quote=True))


def breakable(value: Content) -> Markup:
    """Return a text (a name, an address, a cause) whose lines may end behind its punctuation, and within no word."""
    if value is None or isinstance(value, Markup):
        return text(value)
    return Markup("<wbr>".join([text(piece) for piece in _BREAKS.split(str(value))]))


def tag(element: str, /, *content: Content, **attributes: Content) -> Markup:
    """Return an element. An attribute `class_`, `aria_label` is `class`, `aria-label`; None or False leaves it out."""
    opening = element
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = key.rstrip("_").replace("_", "-")
        opening += f" {shown}" if value is True else f' {shown}="{text(value)}"'
    if element in _VOID:
        return Markup(f"<{opening}/>" if element in ("path", "line") else f"<{opening}>")
    return Markup(f"<{opening}>{join(*content)}</{element}>")


def join(*content: Content) -> Markup:
    """Return several pieces of content, one behind the other."""
    return Markup("".join([text(each) for each in content]))
