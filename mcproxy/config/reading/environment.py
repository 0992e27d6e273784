"""``${NAME}`` in texts is the environment variable NAME; ``$$`` is a dollar sign.

Done after parsing and in values only, so that the value of a variable can never change the file's structure or types.
"""

from __future__ import annotations

import dataclasses
import re

from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Document, Entry, Mapping, Node, Path, Scalar, Sequence, key_path

_DOLLAR = re.compile(r"\$(?:(\$)|\{([^}]*)\}|)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def expand(document: Document, context: Context) -> Document:
    """Return `document` with the variables in its texts replaced.

    What cannot be replaced is reported and added to `document.broken`; offline a variable that is not set is the latter
    only.
    """
    root = _Expander(document, context).node(document.root, ())
    return dataclasses.replace(document, root=root) if isinstance(root, Mapping) else document


@dataclasses.dataclass(frozen=True)
class _Expander:
    document: Document
    context: Context

    def node(self, node: Node, path: Path) -> Node:
        if isinstance(node, Mapping):
            entries = {
                name: Entry(entry.mark, self.node(entry.node, (*path, name))) for name, entry in node.entries.items()
            }
            return Mapping(entries, node.mark)
        if isinstance(node, Sequence):
            return Sequence(tuple(self.node(item, (*path, i)) for i, item in enumerate(node.items)), node.mark)
        if isinstance(node.value, str) and "$" in node.value:
            return Scalar(_DOLLAR.sub(lambda match: self._replace(match, node, path), node.value), node.mark, node.text)
        return node

    def _replace(self, match: re.Match[str], node: Scalar, path: Path) -> str:
        dollar, name = match.groups()
        if dollar is not None:
            return "$"
        if name is None:
            what, right = "a lone dollar sign", "write $$ for a dollar sign, ${NAME} for an environment variable"
        elif not _NAME.match(name):
            what, right = f"${{{name}}} names no environment variable", "write ${NAME}, or $$ for a dollar sign"
        elif name in self.context.environ:
            return self.context.environ[name]
        else:
            what = f"the environment variable {name} is not set"
            right = "set it and restart the daemon (a reload keeps the environment of its start), or write the value"
        self.document.broken.add(path)
        if not (self.context.offline and name is not None and _NAME.match(name)):
            self.context.problems.error(node.mark, key_path(path), what, right)
        return match.group()
