"""Objects and lists in the negotiated representation: in full, as a Table, or as PartialObjectMetadata."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from kubesim.printing import tables
from kubesim.request import negotiation
from kubesim.request.call import Call
from kubesim.storage import lists
from kubesim.storage.lists import Page
from mcproxy.kube.media_types import Accepted

JSONDict = dict[str, Any]

OK = 200


def include_object(call: Call) -> str:
    """Return the includeObject parameter. Raises APIError 400."""
    return tables.check_include_object(call.query.get("includeObject", ""))


def table_of(call: Call, items: list[JSONDict], metadata: JSONDict, accepted: Accepted, include: str) -> JSONDict:
    """Return a Table of objects of the call's resource."""
    table = tables.table(
        call.target,
        items,
        include_object=include,
        list_metadata=metadata,
        now=call.cluster.now(),
        columns=call.target.printer_columns,
    )
    if accepted.version != "v1":
        table["apiVersion"] = f"meta.k8s.io/{accepted.version}"
        for row in table["rows"]:
            if (row.get("object") or {}).get("kind") == "PartialObjectMetadata":
                row["object"]["apiVersion"] = table["apiVersion"]
    return table


def partial(obj: JSONDict, accepted: Accepted) -> JSONDict:
    """Return the PartialObjectMetadata of an object."""
    return {**tables.partial_metadata(obj), "apiVersion": f"meta.k8s.io/{accepted.version}"}


def answer(call: Call, obj: JSONDict, accepted: Accepted, code: int = OK) -> web.StreamResponse:
    """Answer with one object."""
    if accepted.kind == "Table":
        metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
        obj = table_of(call, [obj], metadata, accepted, include_object(call))
    elif accepted.kind:
        obj = partial(obj, accepted)
    return negotiation.respond(call, obj, code)


def answer_list(call: Call, page: Page, accepted: Accepted) -> web.StreamResponse:
    """Answer with a list."""
    if accepted.kind == "Table":
        return negotiation.respond(
            call, table_of(call, page.items, lists.list_metadata(page), accepted, include_object(call))
        )
    if accepted.kind:
        version = f"meta.k8s.io/{accepted.version}"
        content = {
            "kind": "PartialObjectMetadataList",
            "apiVersion": version,
            "metadata": lists.list_metadata(page),
            "items": [partial(item, accepted) for item in page.items],
        }
        return negotiation.respond(call, content)
    return negotiation.respond(call, lists.envelope(call.target, page))
