"""Reads objects from a cluster with the kubernetes package (the extra `import`), which only this module imports.

The cluster's responses are not trusted: they are read in pages of bounded size, and their types are checked later.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

from mcproxy.extras import INSTALL_EXTRAS
from mcproxy.importing.object_files import MAX_OBJECTS, Object, UnusableError, objects_in

_MAX_PAGE = 64 * 1024 * 1024
_PAGE = 100
_TIMEOUT = 30.0
_SECRET_REFERENCES = ("secretRef",)
"""Fields of a spec that name a Secret; these Secrets are read too."""


class LiveError(Exception):
    """The cluster cannot be read; the message contains the remedy."""


def read(kubeconfig: str | None, context: str | None, wanted: Sequence[tuple[str, str, str]]) -> list[Object]:
    """Return all objects of kinds (group, version, plural), and the Secrets that their specs refer to.

    Raises LiveError; UnusableError for a response that is not an object.
    """
    try:
        from kubernetes import client, config
    except ImportError:
        raise LiveError(
            f"--live needs the kubernetes package: {INSTALL_EXTRAS}; or save the objects with kubectl get -o yaml, and "
            "give the files"
        ) from None
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # otherwise it logs each attempt in addition to the error
    try:
        file = kubeconfig or os.environ.get("KUBECONFIG") or None
        api: Any = config.new_client_from_config(config_file=file, context=context)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise LiveError(f"the kubeconfig cannot be used: {error}") from None
    with api:
        reader = _Reader(client.CustomObjectsApi(api), client.CoreV1Api(api))
        found: list[Object] = []
        for group, version, plural in wanted:
            found += reader.objects(group, version, plural, room=MAX_OBJECTS - len(found))
        found += reader.secrets(found)
        return found


class _Reader:
    def __init__(self, custom: Any, core: Any) -> None:
        self._custom = custom
        self._core = core

    def objects(self, group: str, version: str, plural: str, *, room: int) -> list[Object]:
        found: list[Object] = []
        token = ""
        while True:
            page = _answer(
                self._custom.list_cluster_custom_object,
                f"list {plural}.{group}",
                group,
                version,
                plural,
                limit=_PAGE,
                **({"_continue": token} if token else {}),
            )
            page.setdefault("kind", "List")
            page["items"] = page.get("items") or []
            found += objects_in(page, plural, room=room - len(found))
            metadata = page.get("metadata")
            following = metadata.get("continue") if isinstance(metadata, dict) else None
            if not following:
                return found
            if not isinstance(following, str) or not page["items"]:
                raise UnusableError(f"{plural}: the cluster's list does not end")
            token = following

    def secrets(self, objects: Sequence[Object]) -> Iterator[Object]:
        """Yield the Secrets that specs refer to; a missing Secret is reported later, with the object that needs it."""
        wanted = dict.fromkeys(reference for each in objects for reference in _references(each))
        for namespace, name in wanted:
            what = f"get secret {namespace}/{name}"
            try:
                secret = _answer(self._core.read_namespaced_secret, what, name, namespace)
            except _NotFoundError:
                continue
            yield from objects_in({**secret, "kind": "Secret", "apiVersion": "v1"}, what)


def _references(found: Object) -> Iterator[tuple[str, str]]:
    spec = found.fields.fields("spec")
    for key in _SECRET_REFERENCES:
        reference = spec.fields(key)
        namespace, name = reference.text("namespace"), reference.text("name")
        if namespace and name:
            yield namespace, name


class _NotFoundError(LiveError):
    """The cluster does not have the requested object or resource."""


def _answer(method: Any, what: str, *args: Any, **options: Any) -> dict[str, Any]:
    """Return the JSON object in the response to a call, of bounded size. Raises LiveError, UnusableError."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        response = method(*args, **options, _preload_content=False, _request_timeout=_TIMEOUT)
        try:
            data = response.read(_MAX_PAGE + 1)
        finally:
            response.close()
    except ApiException as error:
        kind = _NotFoundError if error.status == 404 else LiveError
        raise kind(f"{what}: {error.status} {error.reason}{_advice(error.status)}") from None
    except (HTTPError, OSError, ValueError) as error:
        raise LiveError(f"{what}: {getattr(error, 'reason', error)}") from None
    if len(data) > _MAX_PAGE:
        raise UnusableError(f"{what}: the answer is larger than {_MAX_PAGE // 2**20} MiB")
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        raise UnusableError(f"{what}: the answer is no JSON") from None
    if not isinstance(answer, dict):
        raise UnusableError(f"{what}: the answer is no Kubernetes object")
    return answer


def _advice(status: int | None) -> str:
    if status in (401, 403):
        return "; use a context whose user may do that"
    if status == 404:
        return "; is this the right context? the cluster does not have that kind"
    return ""
