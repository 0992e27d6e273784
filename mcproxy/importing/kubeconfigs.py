"""Clusters from the contexts of a kubeconfig: referred to, or copied with their certificates, keys and tokens."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from typing import Any

from mcproxy.config.load import load
from mcproxy.config.model import Cluster
from mcproxy.config.problem import ConfigErrors, Problems
from mcproxy.config.reading.yaml_text import read_yaml
from mcproxy.importing.fragment import Fragment, Note, is_cluster_name
from mcproxy.importing.objects import Fields, UnusableError, plain, read_bounded
from mcproxy.importing.output import staged

_LONGEST = 60


def clusters_of(file: str, only: Sequence[str] | None, *, copy: bool) -> tuple[list[Fragment], list[Note]]:
    """Return a cluster for each context of the kubeconfig `file` (or those of `only`), and what was left out.

    With `copy` the fragments have the files; else they refer to the kubeconfig. Raises OSError, ConfigErrors,
    UnusableError.
    """
    path = os.path.abspath(file)
    contexts = _contexts(path)
    if unknown := [name for name in only or () if name not in contexts]:
        raise UnusableError(f"{file}: there is no context {unknown[0]}; there are {', '.join(contexts) or 'none'}")
    fragments: list[Fragment] = []
    left_out: list[Note] = []
    taken: set[str] = set()
    for context, namespace in contexts.items():
        if only and context not in only:
            continue
        name = _cluster_name(context, taken)
        if name is None:
            left_out.append(Note(f"context {context}"[:150], "", "left out: its name has nothing of a cluster's name"))
            continue
        taken.add(name)
        fragment = Fragment(f"context {context}"[:150])
        if name != context:
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


def _contexts(path: str) -> dict[str, str]:
    """Return the names of the contexts with their namespaces. Raises OSError, ConfigErrors, UnusableError."""
    problems = Problems()
    node = read_yaml(path, read_bounded(path), problems)
    if problems.errors or node is None:
        raise ConfigErrors(problems.errors)
    document = plain(node)
    if not isinstance(document, dict):
        raise UnusableError(f"{path}: is not a kubeconfig")
    found: dict[str, str] = {}
    for entry in Fields(document, "").items("contexts"):
        name = entry.text("name")
        if name:
            found[name] = entry.fields("context").text("namespace")
    return found


def _cluster_name(context: str, taken: Collection[str]) -> str | None:
    """Return a name of a cluster, like the context's and none of `taken`; None where nothing of it can be one."""
    if is_cluster_name(context) and context not in taken:
        return context
    labels = (re.sub(r"[^a-z0-9]+", "-", label)[:_LONGEST].strip("-") for label in context.lower().split("."))
    name = ".".join(filter(None, labels))[:_LONGEST].strip("-.")
    if not name or not is_cluster_name(name):
        return None
    numbers = (f"{name}-{number}" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(each for each in numbers if each not in taken)


def _copied(fragment: Fragment, name: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the cluster's entry with files of its own; or as it was, where that cannot be. Raises ConfigErrors."""
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
    return {
        "name": name,
        "endpoints": [{"url": endpoint.url} for endpoint in cluster.endpoints],
        "tls": _tls(fragment, cluster),
        "credentials": _credentials(fragment, cluster),
    }


def _tls(fragment: Fragment, cluster: Cluster) -> dict[str, Any]:
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


def _credentials(fragment: Fragment, cluster: Cluster) -> dict[str, Any]:
    given, made = cluster.credentials, dict[str, Any]()
    if given.token is not None:
        made["tokenFile"] = fragment.file(cluster.name, "token", given.token.reveal().encode())
    elif given.token_file is not None:
        made["tokenFile"] = given.token_file  # its owner renews it: a copy would expire
    if given.certificate is not None and given.key is not None:
        made["certFile"] = fragment.file(cluster.name, "client.crt", given.certificate.data)
        made["keyFile"] = fragment.file(cluster.name, "client.key", given.key.data)
    return made
