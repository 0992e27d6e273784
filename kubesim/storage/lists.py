"""Lists: selectors, resourceVersions, pages of a consistent snapshot, and continue tokens.

Source: apiserver `storage/etcd3/store.go` GetList and `storage/continue.go`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kubesim.apimachinery import selectors, status
from kubesim.apimachinery.resources import ResourceInfo, from_storage
from kubesim.storage.store import Collection, Compacted, ObjectKey, Store
from mcproxy.kube.list_options import ListOptions


def parse_revision(text: str) -> int:
    """Return a resourceVersion as a number; "" and "0" are 0. Raises ValueError with Go's message."""
    if not text:
        return 0
    if not re.fullmatch(r"[0-9]+", text):
        raise ValueError(
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    return int(text)


JSONDict = dict[str, Any]

TOKEN_VERSION = "meta.k8s.io/v1"
LIST_TOO_OLD = "The resourceVersion for the provided list is too old."
CONTINUE_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


@dataclass(frozen=True)
class Page:
    """The objects of a list, in the served version, and its metadata."""

    items: list[JSONDict]
    revision: int
    continue_token: str = ""
    remaining: int | None = None


def encode_token(revision: int, start: str) -> str:
    """Return a continue token in Kubernetes' form."""
    text = json.dumps({"v": TOKEN_VERSION, "rv": revision, "start": start}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def decode_token(token: str) -> tuple[int, str]:
    """Return (revision, start). Raises APIError 400."""
    prefix = "invalid continue token: continue key is not valid"
    for index, char in enumerate(token):
        if not (char.isascii() and (char.isalnum() or char in "-_")):
            raise status.bad_request(f"{prefix}: illegal base64 data at input byte {index}")
    try:
        data = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    except (binascii.Error, ValueError) as error:
        raise status.bad_request(f"{prefix}: illegal base64 data at input byte {len(token)}") from error
    version = data.get("v", "") if isinstance(data, dict) else ""
    if version != TOKEN_VERSION:
        raise status.bad_request(f"{prefix}: server does not recognize this encoded version {version}")
    start = str(data.get("start", ""))
    if not start or ".." in start.split("/"):
        raise status.bad_request(f"{prefix}: invalid start")
    revision = data.get("rv", 0)
    if not isinstance(revision, int):
        raise status.bad_request(f"{prefix}: json: cannot unmarshal into Go struct field .rv of type int64")
    return revision, start


def compile_selectors(resource: ResourceInfo, options: ListOptions) -> list[selectors.Matcher]:
    """Return the predicates of both selectors, over stored objects. Raises APIError 400."""
    matchers = (
        selectors.label_matcher(options.label_selector),
        selectors.field_matcher(options.field_selector, resource),
    )
    return [matcher for matcher in matchers if matcher is not None]


async def wait_for(store: Store, revision: int) -> None:
    """Wait for a revision in the future, up to too_large_wait_seconds. Raises APIError 504."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + store.options.too_large_wait_seconds
    while revision > store.revision:
        if loop.time() >= deadline:
            raise status.too_large_resource_version(revision, store.revision)
        await asyncio.sleep(0.02)


def wanted_revision(text: str) -> int:
    """Parse the resourceVersion parameter of a list or get. Raises APIError 400."""
    try:
        return parse_revision(text)
    except ValueError as error:
        raise status.bad_request(f"invalid resource version: {error}") from error


async def list_page(store: Store, resource: ResourceInfo, namespace: str, options: ListOptions) -> Page:
    """Return the page that the options request. Raises APIError 400, 410, 504."""
    matchers = compile_selectors(resource, options)
    collection = store.collection(resource.storage)
    if options.continue_token:
        return _continued(store, collection, resource, namespace, options, matchers)
    revision = wanted_revision(options.resource_version)
    await wait_for(store, revision)
    current = store.revision
    exact = options.match == "Exact" or (options.limit > 0 and revision > 0 and not options.match)
    limit = 0 if options.resource_version == "0" else options.limit
    if not exact:
        return _page(resource, namespace, collection.at(current).items(), current, "", limit, matchers)
    try:
        state = collection.at(revision)
    except Compacted as error:
        raise status.expired(LIST_TOO_OLD) from error
    return _page(resource, namespace, state.items(), revision, "", limit, matchers)


def _continued(
    store: Store,
    collection: Collection,
    resource: ResourceInfo,
    namespace: str,
    options: ListOptions,
    matchers: list[selectors.Matcher],
) -> Page:
    if options.resource_version not in ("", "0"):
        raise status.bad_request("specifying resource version is not allowed when using continue")
    revision, start = decode_token(options.continue_token)
    start = start.removeprefix("/")
    if revision <= 0:
        revision = store.revision
    try:
        state = collection.at(revision)
    except Compacted as error:
        raise status.expired(CONTINUE_TOO_OLD, continue_token=encode_token(-1, start)) from error
    limit = 0 if options.resource_version == "0" else options.limit
    return _page(resource, namespace, state.items(), revision, start, limit, matchers)


def _page(
    resource: ResourceInfo,
    namespace: str,
    objects: Iterable[tuple[ObjectKey, JSONDict]],
    revision: int,
    start: str,
    limit: int,
    matchers: list[selectors.Matcher],
) -> Page:
    items: list[JSONDict] = []
    last = ""
    remaining = 0
    for key, obj in objects:
        if namespace and key[0] != namespace:
            continue
        path = key[1] if namespace or not key[0] else f"{key[0]}/{key[1]}"
        if path < start or not all(matcher(obj) for matcher in matchers):
            continue
        if limit and len(items) >= limit:
            remaining += 1
            continue
        items.append(from_storage(resource, obj))
        last = path
    if not remaining:
        return Page(items, revision)
    token = encode_token(revision, f"/{last}\x00")
    return Page(items, revision, token, None if matchers else remaining)


def list_metadata(page: Page, *, custom: bool = False) -> JSONDict:
    """Return the ListMeta; that of custom resources always has `continue`."""
    metadata: JSONDict = {"resourceVersion": str(page.revision)}
    if page.continue_token or custom:
        metadata["continue"] = page.continue_token
    if page.remaining is not None:
        metadata["remainingItemCount"] = page.remaining
    return metadata


def envelope(resource: ResourceInfo, page: Page) -> JSONDict:
    """Return the list object; items of built-in kinds have neither kind nor apiVersion."""
    metadata = list_metadata(page, custom=not resource.builtin)
    items = page.items
    if resource.builtin:
        items = [{key: value for key, value in item.items() if key not in ("kind", "apiVersion")} for item in items]
    return {
        "kind": resource.list_kind or f"{resource.kind}List",
        "apiVersion": resource.group_version,
        "metadata": metadata,
        "items": items,
    }
