"""Makes clusters from the contexts of a kubeconfig, as references or with copies of certificates, keys and secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from typing import Any

from mcproxy.config.load import load
from mcproxy.config.model import ClusterConfig
from mcproxy.config.problem import ConfigErrors, Problems
from mcproxy.config.reading.yaml_text import read_yaml
from mcproxy.importing.fragment import Fragment, Note, is_cluster_name, staged
from mcproxy.importing.http_proxies import proxy_entry
from mcproxy.importing.object_files import Fields, UnusableError, plain, read_bounded

_LONGEST = 60


def clusters_of(
    file: str, only: Sequence[str] | None, *, copy: bool, names: Sequence[str] = ()
) -> tuple[list[Fragment], list[Note]]:
    """Return a cluster for each context of the kubeconfig `file` (or those of `only`), and the notes on omissions.

    `names`: the names of the clusters, in the order of `only` or of the file; if empty, they are made from the names of
    the contexts. With `copy` the fragments contain the files, otherwise they refer to the kubeconfig. Raises OSError,
    ConfigErrors, UnusableError.
    """
    path = os.path.abspath(file)
    contexts = _contexts(path)
    if unknown := [name for name in only or () if name not in contexts]:
        raise UnusableError(f"{file}: there is no context {unknown[0]}; there are {', '.join(contexts) or 'none'}")
    chosen = list(dict.fromkeys(only or contexts))
    given = _given_names(file, chosen, names)
    fragments: list[Fragment] = []
    left_out: list[Note] = []
    taken: set[str] = set(given.values())
    for context, (namespace, cluster) in contexts.items():
        if context not in chosen:
            continue
        name = given.get(context) or _cluster_name(context, cluster, taken)
        if name is None:
            left_out.append(Note(f"context {context}"[:150], "", "left out: its name has nothing of a cluster's name"))
            continue
        taken.add(name)
        fragment = Fragment(f"context {context}"[:150])
        if name != context and context not in given:
            fragment.note("name", f"the cluster is called {name}: a cluster's name is a DNS name")
        if namespace:
            fragment.note("context.namespace", "is not carried over: it is a setting of clients")
        entry: dict[str, Any] = {"name": name, "kubeconfig": {"file": path, "context": context}}
        if copy:
            try:
                entry = _copied(fragment, name, entry)
            except ConfigErrors as errors:
                problem = next(
                    (each for each in errors.problems if each.mark and each.mark.file == path), errors.problems[0]
                )
                left_out.append(Note(fragment.origin, problem.key, f"left out: {problem.what}; {problem.right}"))
                continue
        fragment.add("clusters", entry)
        fragments.append(fragment)
    if not fragments and not left_out:
        raise UnusableError(f"{file}: has no contexts")
    return fragments, left_out


def _given_names(file: str, chosen: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return the given names of clusters, by context. Raises UnusableError."""
    if not names:
        return {}
    if len(names) != len(chosen):
        raise UnusableError(
            f"{file}: {len(names)} names for {len(chosen)} contexts ({', '.join(chosen)}); "
            "give --context and --name for each"
        )
    for number, name in enumerate(names):
        if not is_cluster_name(name):
            raise UnusableError(f"{name} is no name of a cluster: that is a DNS name, such as east or east.example.com")
        if name in names[:number]:
            raise UnusableError(f"two clusters of the name {name}")
    return dict(zip(chosen, names, strict=True))


def _contexts(path: str) -> dict[str, tuple[str, str]]:
    """Return the names of the contexts with their namespaces and, for names of the form USER@CLUSTER, the cluster.

    Raises OSError, ConfigErrors, UnusableError.
    """
    problems = Problems()
    node = read_yaml(path, read_bounded(path), problems)
    if problems.errors or node is None:
        raise ConfigErrors(problems.errors)
    document = plain(node)
    if not isinstance(document, dict):
        raise UnusableError(f"{path}: is not a kubeconfig")
    found: dict[str, tuple[str, str]] = {}
    for entry in Fields(document, "").items("contexts"):
        name = entry.text("name")
        if name:
            context = entry.fields("context")
            cluster = context.text("cluster")
            as_kubeadm = bool(cluster) and name == f"{context.text('user')}@{cluster}"
            found[name] = context.text("namespace"), cluster if as_kubeadm else ""
    return found


def _cluster_name(context: str, cluster: str, taken: Collection[str]) -> str | None:
    """Return a cluster name similar to the context's name and not in `taken`; None if no part of the name is usable.

    `cluster`: the cluster in a context name of kubeadm's form (kubernetes-admin@kubernetes), else "".
    """
    context = cluster or context
    if is_cluster_name(context) and context not in taken:
        return context
    labels = (re.sub(r"[^a-z0-9]+", "-", label)[:_LONGEST].strip("-") for label in context.lower().split("."))
    name = ".".join(filter(None, labels))[:_LONGEST].strip("-.")
    if not name or not is_cluster_name(name):
        return None
    numbers = (f"{name}-{number}" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(each for each in numbers if each not in taken)


def _copied(fragment: Fragment, name: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the cluster's entry with copies of its files, or unchanged if not copyable. Raises ConfigErrors."""
    alone = Fragment(fragment.origin)
    alone.add("clusters", entry)
    with staged([alone]) as path:
        cluster = load(path, environ={}).config.clusters[0]
    credentials = cluster.credentials
    if credentials.basic is not None:
        fragment.note("user", "the kubeconfig is referred to, not copied: a user name and password can only be there")
        return entry
    if credentials.exec is not None:
        what = "the arguments and environment of an exec plugin may be secret, and have no file of their own"
        fragment.note("user.exec", f"the kubeconfig is referred to, not copied: {what}")
        return entry
    proxy = proxy_entry(fragment, cluster.name, cluster.proxy) if cluster.proxy is not None else {}
    if proxy is None:
        what = "the kubeconfig is referred to, not copied: an empty user name or password can only be there"
        fragment.note("cluster.proxy-url", what)
        return entry
    return {
        "name": name,
        "endpoints": [{"url": endpoint.url} for endpoint in cluster.endpoints],
        "tls": _tls(fragment, cluster),
        "credentials": _credentials(fragment, cluster),
        **({"proxy": proxy} if proxy else {}),
    }


def _tls(fragment: Fragment, cluster: ClusterConfig) -> dict[str, Any]:
    tls: dict[str, Any] = {}
    if cluster.tls.ca is not None:
        tls["caFile"] = fragment.file(cluster.name, "ca.crt", cluster.tls.ca.data)
    if cluster.tls.server_name is not None:
        tls["serverName"] = cluster.tls.server_name
    if cluster.tls.insecure_skip_verify:
        tls["insecureSkipVerify"] = True
        what = "INSECURE: carried over: the certificates of the API servers are not verified at all"
        fragment.note("cluster.insecure-skip-tls-verify", what)
    return tls


def _credentials(fragment: Fragment, cluster: ClusterConfig) -> dict[str, Any]:
    given, made = cluster.credentials, dict[str, Any]()
    if given.token is not None:
        made["tokenFile"] = fragment.file(cluster.name, "token", given.token.reveal().encode())
    elif given.token_file is not None:
        made["tokenFile"] = given.token_file  # not copied: its owner renews the token, and a copy would expire
    if given.certificate is not None and given.key is not None:
        made["certFile"] = fragment.file(cluster.name, "client.crt", given.certificate.data)
        made["keyFile"] = fragment.file(cluster.name, "client.key", given.key.data)
    return made
