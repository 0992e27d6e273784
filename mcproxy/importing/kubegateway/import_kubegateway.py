"""Translates all UpstreamClusters of the input."""

from __future__ import annotations

from collections.abc import Iterable

from mcproxy.importing.fragment import Fragment, Note
from mcproxy.importing.kubegateway.upstream_cluster import GROUP, KIND, Options, translate
from mcproxy.importing.object_files import Object, UnusableError


def translate_all(objects: Iterable[Object], options: Options) -> tuple[list[Fragment], list[Note]]:
    """Return a fragment for each UpstreamCluster, and what was left out: other kinds, and unusable objects.

    Raises UnusableError where there is no UpstreamCluster at all.
    """
    fragments: dict[str, Fragment] = {}
    left_out: list[Note] = []
    for found in objects:
        origin = f"{found.kind} {found.name}"[:150]
        if found.kind != KIND or found.api_version.partition("/")[0] != GROUP:
            left_out.append(Note(origin, "", "left out: it is no UpstreamCluster"))
            continue
        name = found.name.lower()
        if name in fragments:
            left_out.append(Note(origin, "", "left out: there is another of this name before it"))
            continue
        try:
            fragments[name] = translate(found, options)
        except UnusableError as error:
            left_out.append(Note(origin, "", f"left out: {error}"))
    if not fragments and not left_out:
        raise UnusableError("there is no UpstreamCluster in what was read")
    return list(fragments.values()), left_out
