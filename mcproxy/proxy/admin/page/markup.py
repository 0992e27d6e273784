"""Makes HTML of which every text is escaped, and texts of numbers. Only what is made here is taken as markup.

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


# Numbers, sizes and times as people read them. None, what is not known, is a dash. Pure.

UNKNOWN = "\N{EN DASH}"

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def count(value: float | None) -> str:
    """Return a whole number, with commas: ``12,345``."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def number(value: float | None) -> str:
    """Return a number with three digits that matter: ``0.25``, ``12.3``, ``1,234``."""
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
    """Return a short time: ``3 ms``, ``0.42 s``, ``12 s``; a long one as `duration`."""
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
    """Return a part of one as per cent."""
    return UNKNOWN if value is None else f"{value * 100:.0f} %"
