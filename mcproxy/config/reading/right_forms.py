"""Suggestions for malformed values whose intent is clear: ``bind: 7600`` is a port without an address."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

from mcproxy.config.reading.nodes import Node, Path, Scalar, Sequence

_BIND = "write host:port, [v6]:port, unix:/absolute/path or systemd:NAME"


def right_form(path: Path, node: Node) -> str | None:
    """Return what to write instead of `node`, or None where nothing better is known than the form of the schema."""
    form = tuple(step if isinstance(step, str) else "[]" for step in path)
    find = _FORMS.get(form)
    return find(node) if find is not None else None


def _bind(node: Node) -> str | None:
    text = node.text if isinstance(node, Scalar) else ""
    host, colon, port = text.rpartition(":")
    if text.isdigit() or (host in ("", "*") and colon and port.isdigit()):
        port = port or text
        return f'write "0.0.0.0:{port}" or "[::]:{port}" for all addresses, "127.0.0.1:{port}" for this machine alone'
    if text.startswith("/"):
        return f"write unix:{text}"
    if text.removeprefix("unix:").startswith("~"):
        return "write unix:/absolute/path: ~ means nothing here"
    if _is_address(host) and ":" in host and port.isdigit():
        return f'write "[{host}]:{port}"'
    if _is_address(text):
        return f'write "[{text}]:6443"' if ":" in text else f'write it with a port: "{text}:6443"'
    return _BIND if not isinstance(node, Scalar) else None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _one_name(node: Node) -> str | None:
    """A list where a name is wanted."""
    if not isinstance(node, Sequence):
        return None
    names = [item.text for item in node.items if isinstance(item, Scalar)]
    return f"name one, without brackets: {names[0]}" if names else "name one, or leave the key out"


def _log_file(node: Node) -> str | None:
    file = node.text if isinstance(node, Scalar) and isinstance(node.value, str) else "FILE"
    return f"write {{file: {file}}}"


def _endpoint(node: Node) -> str | None:
    url = node.text if isinstance(node, Scalar) and isinstance(node.value, str) else "https://…"
    return f'write {{url: "{url}"}}'


def _backend(node: Node) -> str | None:
    if isinstance(node, Scalar) and isinstance(node.value, str):
        return f"write {{cluster: {node.text}}}"
    if isinstance(node, Sequence):
        return "write {clusters: […]}"
    return "write {cluster: NAME}, {clusters: [NAME, …]} or {aggregate: NAME}"


_FORMS: dict[Path, Callable[[Node], str | None]] = {
    ("listeners", "[]", "bind"): _bind,
    ("servers", "[]", "authentication"): _one_name,
    ("servers", "[]", "authorization"): _one_name,
    ("servers", "[]", "backend"): _backend,
    ("logging", "access"): _log_file,
    ("logging", "audit"): _log_file,
    ("clusters", "[]", "endpoints", "[]"): _endpoint,
}
