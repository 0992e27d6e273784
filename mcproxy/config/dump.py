"""Writes the effective configuration as a document in the form of the file, with defaults and absolute file names.

Secrets are masked unless the caller requests them. Loading the unmasked document gives the same model again. The model
defines the names of keys and the forms of values (`config.model.keys`). This module defines the exceptions, and writes
a document as YAML or JSON, for people to read and `mcproxy` to load.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mcproxy.config.model import (
    OIDC,
    Aggregate,
    ClusterBackend,
    ClusterConfig,
    Config,
    Credentials,
    EndpointConfig,
    FlowControl,
    FlowControlType,
    HTTPProxy,
    JWKSFile,
    ListenerConfig,
    PEMFile,
    Rule,
    Secret,
    Server,
    Serves,
    TokenFileConfig,
    Webhook,
)
from mcproxy.config.model.keys import ModelKey, NumberForm, keys_of
from mcproxy.config.units import format_duration, format_size

# -- documents as YAML or JSON ----------------------------------------------------------------------------------------

_BARE = re.compile(r"[A-Za-z/][A-Za-z0-9/._-]*\Z|([0-9]+(h|m|s|ms))+\Z|[0-9]+[KMGT]i\Z")
_WORDS_WITH_MEANING = frozenset("null true false yes no on off y n".split())  # noqa: SIM905
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff-\ufeff]")

Document = dict[str, Any]
Path = tuple[str | int, ...]
Comments = Mapping[Path, Sequence[str]]


def to_json(document: Document) -> str:
    return _readable(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"


def to_yaml(document: Document, comments: Comments | None = None) -> str:
    """Return block-style YAML with the same meaning in YAML 1.1 and 1.2.

    `comments` are comment lines for mappings, by the path (keys and indices) of the mapping.
    """
    return "".join(line + "\n" for line in _yaml(document, "", (), comments or {}))


def _yaml(value: Any, indent: str, path: Path, comments: Comments) -> Iterable[str]:
    if isinstance(value, dict) and value:
        yield from (f"{indent}# {line}" for line in comments.get(path, ()))
        for key, item in value.items():
            if isinstance(item, dict | list) and item:
                yield f"{indent}{_word(key)}:"
                yield from _yaml(item, indent + "  ", (*path, key), comments)
            else:
                yield f"{indent}{_word(key)}: {_word(item)}"
    elif isinstance(value, list) and value:
        for number, item in enumerate(value):
            nested = isinstance(item, dict | list) and item
            lines = list(_yaml(item, "  ", (*path, number), comments)) if nested else [f"  {_word(item)}"]
            yield f"{indent}- {lines[0][2:]}"
            yield from (indent + line for line in lines[1:])
    else:
        yield f"{indent}{_word(value)}"


def _word(value: Any) -> str:
    """Return a scalar or an empty collection. A string is unquoted only if every YAML reader reads it as a string."""
    if isinstance(value, str) and _BARE.match(value) and value.lower() not in _WORDS_WITH_MEANING:
        return value
    return _readable(json.dumps(value, ensure_ascii=False))


def _readable(text: str) -> str:
    return _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


# -- the document of a configuration ----------------------------------------------------------------------------------

MASK = "(masked)"
FORMS = ("yaml", "json")


def effective(config: Config, *, masked: bool = True) -> Document:
    """Return `config` as a document; with `masked`, a fixed word replaces secrets."""
    document: Document = _escape(_without_empty({"version": 1, **_document(config, masked)}))
    return document


def as_text(config: Config, form: str) -> str:
    """Return the output of `mcproxy dump` for `config`, masked; `form` is one of FORMS."""
    document = effective(config)
    return to_yaml(document, resolved(config)) if form == "yaml" else to_json(document)


def resolved(config: Config) -> Mapping[Path, Sequence[str]]:
    """Return the values that kubeconfigs resolved to, as comments for `to_yaml`; secrets are masked."""
    comments: dict[Path, Sequence[str]] = {}
    for number, cluster in enumerate(config.clusters):
        if cluster.kubeconfig is not None:
            direct = _document(dataclasses.replace(cluster, kubeconfig=None), masked=True)
            document = {"resolved": _without_empty({key: direct[key] for key in _RESOLVED_KEYS})}
            comments["clusters", number, "kubeconfig"] = to_yaml(document).splitlines()
    return comments


def _document(model: Any, masked: bool) -> Document:
    """Return a model object as a mapping in the form of the file; keys without a value are None."""
    document: Document = {}
    for key in keys_of(type(model)):
        value = getattr(model, key.field)
        found = None if key.omit_empty and not value else written(value, key, masked)
        *mappings, name = key.path
        if mappings and found is None:
            continue
        inner = document
        for mapping in mappings:
            inner = inner.setdefault(mapping, {})
        inner[name] = found
    adapt = _OTHER_FORMS.get(type(model))
    return adapt(model, document) if adapt is not None else document


def written(value: Any, key: ModelKey, masked: bool) -> Any:
    """Return the value of a field, or an item of it, in the form of the file; `masked` replaces secrets."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):  # a string or a member of a StrEnum
        return MASK if key.secret and masked else str(value)
    if isinstance(value, int | float):
        return _number(value, key.form)
    if isinstance(value, tuple):
        if key.is_mapping:
            return {name: MASK if key.secret and masked else item for name, item in value}
        return [written(item, key, masked) for item in value]
    if isinstance(value, Secret):
        return MASK if masked else value.reveal()
    if isinstance(value, PEMFile | JWKSFile | TokenFileConfig):
        return value.path
    return _document(value, masked) if dataclasses.is_dataclass(value) else str(value)


def _number(value: float, form: NumberForm) -> str | int | float:
    if form is NumberForm.DURATION:
        return format_duration(value)
    if form is NumberForm.OCTAL:
        return f"{value:04o}"
    if form is NumberForm.SIZE:
        text = format_size(int(value))
        return int(value) if text.isdigit() else text
    return int(value) if float(value).is_integer() else value  # a whole number is written without decimals


def _listener(listener: ListenerConfig, document: Document) -> Document:
    """Put the keys of the model's `bind` after the key `bind`; omit keys of Admin listeners from other listeners.

    A listener with `dial` has no keys about connecting clients.
    """
    if listener.bind is not None:
        document = _with_keys(document, "bind", {"bind": str(listener.bind), **document["bind"]})
    else:
        document = _without(document, ("protocols", "trustedProxies"))
    left_out = () if listener.serves is Serves.ADMIN else ("paths", "authentication", "authorization")
    return _without(document, left_out)


_RESOLVED_KEYS = ("endpoints", "tls", "credentials", "proxy")


def _cluster(cluster: ClusterConfig, document: Document) -> Document:
    """Write the reference to a kubeconfig instead of the values read from it."""
    return _without(document, _RESOLVED_KEYS if cluster.kubeconfig is not None else ())


def _endpoint(endpoint: EndpointConfig, document: Document) -> Document:
    if endpoint.tunnel is None:
        return {"name": endpoint.name, "url": endpoint.url, **document}
    where = {"tunnel": endpoint.tunnel, "path": endpoint.path or None}
    return {"name": endpoint.name, **where, **_without(document, ("tunnel",))}


def _credentials(credentials: Credentials, document: Document) -> Document:
    """Write user name and password, which come from kubeconfigs only; the configuration file has no keys for them."""
    user, password = document["basic"] or (None, None)
    return _with_keys(document, "basic", {"username": user, "password": password})


def _http_proxy(proxy: HTTPProxy, document: Document) -> Document:
    """Add a password from a kubeconfig, masked; the configuration file has no key for it."""
    if proxy.password is None or proxy.password_file is not None:
        return document
    return _with_keys(document, "passwordFile", {"password": MASK})


def _oidc(issuer: OIDC, document: Document) -> Document:
    return document if issuer.groups_claim is not None else {**document, "groupsPrefix": None}


def _webhook(webhook: Webhook, document: Document) -> Document:
    return {**document, "kubeconfig": webhook.kubeconfig.file}


def _rule(rule: Rule, document: Document) -> Document:
    accounts = [{"namespace": namespace, "name": name} for namespace, name in rule.service_accounts]
    return {**document, "serviceAccounts": accounts or None}


def _flow_control(control: FlowControl, document: Document) -> Document:
    """Omit the keys of other types of flow control."""
    if control.type is FlowControlType.EXEMPT:
        return _without(document, ("qps", "burst", "max", "maxLongRunning", "per", "queue"))
    is_bucket = control.type is FlowControlType.TOKEN_BUCKET
    return _without(document, ("max", "maxLongRunning") if is_bucket else ("qps", "burst"))


def _aggregate(aggregate: Aggregate, document: Document) -> Document:
    """Keep former members at their position in `clusters`; write the clusters that a clusterSelector selects."""
    return {**document, "clusters": list(aggregate.layout), "formerMembers": list(aggregate.former_members)}


def _server(server: Server, document: Document) -> Document:
    """Write `none` for an omitted `authentication` (on loopback), and only the keys of policies with an effect."""
    document["authentication"] = server.authentication or "none"
    for number, (policy, written) in enumerate(zip(server.dispatch or (), document["dispatch"] or (), strict=True)):
        if policy.name == f"dispatch[{number}]":
            written["name"] = None
        if policy.reject is not None or not isinstance(server.backend, ClusterBackend):
            for key in ("endpoints", "strategy", "backend"):
                del written[key]
    return document


_OTHER_FORMS: dict[type[Any], Callable[[Any, Document], Document]] = {
    Aggregate: _aggregate,
    ClusterConfig: _cluster,
    Credentials: _credentials,
    EndpointConfig: _endpoint,
    FlowControl: _flow_control,
    HTTPProxy: _http_proxy,
    ListenerConfig: _listener,
    OIDC: _oidc,
    Rule: _rule,
    Server: _server,
    Webhook: _webhook,
}
"""Functions by class for objects whose form in the file differs from the model. They get the object and the document of
its keys, and return the document to write."""


def _with_keys(document: Document, key: str, others: Document) -> Document:
    """Return the document with one key replaced by others."""
    made: Document = {}
    for name, value in document.items():
        made.update(others if name == key else {name: value})
    return made


def _without(document: Document, keys: Sequence[str]) -> Document:
    return {name: value for name, value in document.items() if name not in keys}


def _without_empty(value: Any) -> Any:
    """Return the document without keys that have no value."""
    if isinstance(value, dict):
        return {key: _without_empty(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    return value


def _escape(value: Any) -> Any:
    """Double dollar signs, which would start names of environment variables."""
    if isinstance(value, dict):
        return {key: _escape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escape(item) for item in value]
    return value.replace("$", "$$") if isinstance(value, str) else value
