"""Reads control socket, includes and variables of a configuration file, even if it is otherwise invalid.

`mcproxy reload` must reach the daemon even if the file is invalid, so that the daemon can report the errors. So
`daemon.controlSocket` is read from the file and its includes as YAML, or if that fails, from the line with the key.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Mapping

import yaml

from mcproxy.config.control_socket import possible_places
from mcproxy.kube import yaml_nodes

MAX_EVENTS = 1_000_000
"""The keys and values that this module reads."""
_LINE = re.compile(
    r"""^[ \t]*(?:daemon:[ \t]*\{)?[^#\n]*?\bcontrolSocket["']?[ \t]*:[ \t]*(?P<value>[^#,}\n]+)""", re.M
)
_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def places_of_control_socket(path: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return possible control sockets of the daemon that runs `path`, best first: the configured one, or the defaults.

    Raises OSError if the file is unreadable.
    """
    named = find_control_socket(path, environ)
    return tuple(possible_places(path, environ)) if named is None else (named,)


def find_control_socket(path: str, environ: Mapping[str, str]) -> str | None:
    """Return the absolute path of the control socket that `path` (or an included file) sets, or None.

    Unset variables stay unexpanded. Raises OSError if `path` itself is unreadable.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    found = _in_text(text)
    if found is not None:
        return _absolute(found, path, environ)
    for included in included_files(text, path, environ):
        try:
            with open(included, encoding="utf-8", errors="replace") as file:
                found = _in_text(file.read())
        except OSError:
            continue
        if found is not None:
            return _absolute(found, included, environ)
    return None


def variables_of(path: str) -> set[str]:
    """Return the names of the environment variables in `path` and its included files."""
    names: set[str] = set()
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        files = [text]
        for included in included_files(text, path, os.environ):
            with open(included, encoding="utf-8", errors="replace") as file:
                files.append(file.read())
    except OSError:
        return names
    for text in files:
        names.update(match[1] for match in _VARIABLE.finditer(text) if match[1])
    return names


def _in_text(text: str) -> str | None:
    try:
        document = yaml_nodes.compose(text, events=MAX_EVENTS, aliases=True)
    except yaml.YAMLError:
        match = _LINE.search(text)
        return match["value"].strip().strip("\"'") if match else None
    return yaml_nodes.text_of(yaml_nodes.entry(document, "daemon", "controlSocket")) or None


def included_files(text: str, path: str, environ: Mapping[str, str]) -> Iterable[str]:
    """Yield the names of the files that `text`, the content of `path`, includes; none if it is invalid YAML."""
    try:
        document = yaml_nodes.compose(text, events=MAX_EVENTS, aliases=True)
    except yaml.YAMLError:
        return
    for item in yaml_nodes.items(yaml_nodes.entry(document, "include")):
        pattern = yaml_nodes.text_of(item)
        if pattern is not None:
            yield from sorted(glob.glob(_absolute(pattern, path, environ)))


def _absolute(value: str, file: str, environ: Mapping[str, str]) -> str:
    """Expand ${NAME} and $$; a relative name is relative to the directory of `file`."""
    expanded = _VARIABLE.sub(lambda match: environ.get(match[1], match[0]) if match[1] else "$", value)
    return os.path.join(os.path.dirname(os.path.abspath(file)), expanded)
