"""Makes HTML with every text escaped, and formats numbers as text. Only markup that is made here stays unescaped.

Texts come from files, clusters and clients. In addition to HTML escaping, invisible characters are replaced: control
characters, and characters that change the text direction.
"""

from __future__ import annotations

import re
from html import escape

_VOID = frozenset({"br", "input", "meta", "path", "line"})
# Additional positions for line breaks, other than spaces and hyphens: never within a word, number or address.
_BREAKS = re.compile(r"(?<=[/@_;=&?+])(?=\w)|(?<=[.:,])(?=[^\W\d])")


class Markup(str):
    """HTML that needs no escaping."""

    __slots__ = ()


Content = object
"""Markup, or any other value, which is shown as text; None is shown as nothing."""

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
    """Return a text (a name, an address, a cause) with possible line breaks after punctuation, never within a word."""
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
    """Return the concatenation of several pieces of content."""
    return Markup("".join([text(each) for each in content]))


# Numbers, sizes and times in human-readable form. None (unknown) is a dash. Pure.

UNKNOWN = "\N{EN DASH}"

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def count(value: float | None) -> str:
    """Return a whole number, with commas: ``12,345``."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def number(value: float | None) -> str:
    """Return a number with three significant digits: ``0.25``, ``12.3``, ``1,234``."""
    if value is None:
        return UNKNOWN
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def size(value: float | None) -> str:
    """Return bytes: ``1.5 MiB``."""
    if value is None:
        return UNKNOWN
    rest = float(value)
    for unit in _UNITS[:-1]:
        if rest < 1024:
            return f"{number(round(rest, 1))} {unit}"
        rest /= 1024
    return f"{number(round(rest, 1))} {_UNITS[-1]}"


def seconds(value: float | None) -> str:
    """Return a short time as ``3 ms``, ``0.42 s``, ``12 s``, and a long time as `duration` does."""
    if value is None:
        return UNKNOWN
    if value >= _MINUTE:
        return duration(value)
    return f"{number(round(value * 1000, 1))} ms" if value < 0.1 else f"{number(round(value, 2))} s"


def duration(value: float | None) -> str:
    """Return a time in its two largest units: ``3 d 4 h``."""
    if value is None:
        return UNKNOWN
    whole = int(value)
    for unit, name, smaller, smaller_name in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", 1, "s"),
    ):
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {name}" + (f" {rest} {smaller_name}" if rest else "")
    return f"{whole} s"


def instant(value: str | None) -> str:
    """Return an RFC 3339 time in UTC to the second, with spaces: ``2026-11-22 12:00:00Z``."""
    if not value:
        return UNKNOWN
    return value.replace("T", " ").partition(".")[0].removesuffix("Z") + "Z"


def share(value: float | None) -> str:
    """Return a fraction of 1 as a percentage."""
    return UNKNOWN if value is None else f"{value * 100:.0f} %"
