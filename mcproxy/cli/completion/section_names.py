"""The names in a section of a configuration file that may be invalid or incomplete."""

from __future__ import annotations

import os
from collections.abc import Iterator

import yaml

from mcproxy.cli.control_socket import MAX_EVENTS, included_files
from mcproxy.kube import yaml_nodes

_MAX_BYTES = 16 * 1024 * 1024
_UNSAFE = frozenset("\"'`$\\;|&<>()[]{}*?!#~ \t\n")


def section_names(path: str, section: str) -> list[str]:
    """Return the names in a section of `path` and the files that it includes; a file that cannot be read has none.

    Names with characters that are special to a shell are left out: mcproxy does not accept them either.
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
        document = yaml_nodes.compose(text, events=MAX_EVENTS, aliases=True)
    except yaml.YAMLError:
        return
    for name in _group_versions(document) if section == "apiServices" else _names(document, section):
        if name and name.isprintable() and not _UNSAFE.intersection(name):
            yield name


def _names(document: yaml.Node | None, section: str) -> Iterator[str | None]:
    for each in yaml_nodes.items(yaml_nodes.entry(document, section)):
        yield yaml_nodes.text_of(yaml_nodes.entry(each, "name"))


def _group_versions(document: yaml.Node | None) -> Iterator[str | None]:
    for server in yaml_nodes.items(yaml_nodes.entry(document, "servers")):
        for each in yaml_nodes.items(yaml_nodes.entry(server, "apiServices")):
            parts = [yaml_nodes.text_of(yaml_nodes.entry(each, key)) for key in ("group", "version")]
            yield "/".join(part for part in parts if part) if all(parts) else None
