"""The names in a section of a configuration file that may be wrong, or half written."""

from __future__ import annotations

import os
from collections.abc import Iterator

import yaml

from mcproxy.cli.control_socket import included_files

_MAX_BYTES = 16 * 1024 * 1024
_PARSER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_UNSAFE = frozenset("\"'`$\\;|&<>()[]{}*?!#~ \t\n")


def section_names(path: str, section: str) -> list[str]:
    """Return the names in a section of `path` and the files that it includes; what cannot be read has none.

    Names with characters that a shell would take for its own are left out: they are no names of mcproxy's.
    """
    names: dict[str, None] = {}
    for text in _texts(path):
        names.update(dict.fromkeys(_in_text(text, section)))
    return list(names)


def _texts(path: str) -> Iterator[str]:
    try:
        text = _read(path)
    except OSError:
        return
    yield text
    for included in included_files(text, path, os.environ):
        try:
            yield _read(included)
        except OSError:
            continue


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(_MAX_BYTES)


def _in_text(text: str, section: str) -> Iterator[str]:
    try:
        document = yaml.load(text, Loader=_PARSER)
    except (yaml.YAMLError, RecursionError, ValueError):
        return
    entries = document.get(section) if isinstance(document, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        name = entry.get("name") if isinstance(entry, dict) else None
        if isinstance(name, str) and name and name.isprintable() and not _UNSAFE.intersection(name):
            yield name
