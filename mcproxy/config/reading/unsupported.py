"""Parts of the configuration contract that this version does not support: refused, never accepted and ignored.

They get another message than unknown keys, since they are not misspelt. When a part is built, its line here goes and
the schema gets it.
"""

from __future__ import annotations

from mcproxy.config.problem import Problems
from mcproxy.config.reading.nodes import Document, Mapping, Node, Path, Scalar, Sequence, key_path

# Key paths ("[]" is any entry of a list) -> what would be right meanwhile.
_KEYS: dict[tuple[str, ...], str] = {
    ("serviceExports",): "leave it out",
    ("serviceDiscovery",): "leave it out",
    ("ingresses",): "leave it out",
    ("servers", "[]", "apiServices"): "leave it out",
}
# Values: the words that are not supported yet, and what would be right meanwhile.
_VALUES: dict[tuple[str, ...], tuple[frozenset[str], str]] = {
    ("listeners", "[]", "serves"): (frozenset({"Ingress"}), "write serves: API, or leave the listener out"),
}


def check(document: Document, problems: Problems) -> None:
    """Report each use of a part that is not supported yet, and add it to `document.broken`."""
    _walk(document, problems, document.root, (), ())


def _walk(document: Document, problems: Problems, node: Node, path: Path, form: tuple[str, ...]) -> None:
    if isinstance(node, Mapping):
        for name, entry in node.entries.items():
            here, shape = (*path, name), (*form, name)
            if shape in _KEYS:
                problems.error(entry.mark, key_path(here), "is not supported yet", _KEYS[shape])
                document.broken.add(here)
            elif isinstance(entry.node, Scalar):
                _value(document, problems, entry.node, here, shape)
            else:
                _walk(document, problems, entry.node, here, shape)
    elif isinstance(node, Sequence):
        for index, item in enumerate(node.items):
            _walk(document, problems, item, (*path, index), (*form, "[]"))


def _value(document: Document, problems: Problems, node: Scalar, path: Path, form: tuple[str, ...]) -> None:
    value = node.value
    if form in _VALUES and value in _VALUES[form][0]:
        what, right = f"{value} is not supported yet", _VALUES[form][1]
    else:
        return
    problems.error(node.mark, key_path(path), what, right)
    document.broken.add(path)
