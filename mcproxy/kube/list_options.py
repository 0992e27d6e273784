"""ListOptions: the query parameters of list, watch and deletecollection, parsed and validated as in Kubernetes.

Source: apimachinery `meta/internalversion/validation.ValidateListOptions` and the conversions of url.Values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcproxy.kube.query_parameters import boolean, integer
from mcproxy.kube.status import StatusCause, invalid

_MATCH = "resourceVersionMatch"


@dataclass(frozen=True)
class ListOptions:
    """ListOptions; `limit` is 0 if it is not set, `timeout` is in seconds (0: not set)."""

    label_selector: str = ""
    field_selector: str = ""
    resource_version: str = ""
    match: str = ""
    limit: int = 0
    continue_token: str = ""
    timeout: int = 0
    watch: bool = False
    bookmarks: bool = False
    initial_events: bool | None = None


def parse(query: Mapping[str, str], *, watch: bool = False) -> ListOptions:
    """Parse and validate. `watch` is set for the deprecated /watch/ paths. Raises StatusError 400, 422."""
    initial = query.get("sendInitialEvents")
    options = ListOptions(
        label_selector=query.get("labelSelector", ""),
        field_selector=query.get("fieldSelector", ""),
        resource_version=resource_version(query),
        match=query.get(_MATCH, ""),
        limit=max(0, integer(query.get("limit") or "0")),
        continue_token=query.get("continue", ""),
        timeout=integer(query.get("timeoutSeconds") or "0"),
        watch=watch or boolean(query.get("watch")),
        bookmarks=boolean(query.get("allowWatchBookmarks")),
        initial_events=None if initial is None else boolean(initial),
    )
    causes = _check_watch(options) if options.watch else _check_list(options)
    if causes:
        raise invalid("meta.k8s.io", "ListOptions", "", causes)
    return options


def resource_version(query: Mapping[str, str]) -> str:
    """Return the resourceVersion parameter, "" if there is none. It is parsed as a number, so "00" is "0"."""
    text = query.get("resourceVersion", "")
    return text if text.strip("0") or not text else "0"


def _forbidden(message: str, field: str = _MATCH) -> StatusCause:
    return StatusCause("FieldValueForbidden", f"Forbidden: {message}", field)


def _unsupported(value: str, supported: str) -> StatusCause:
    return StatusCause("FieldValueNotSupported", f'Unsupported value: "{value}": supported values: {supported}', _MATCH)


def _check_list(options: ListOptions) -> list[StatusCause]:
    causes = []
    if options.match:
        if not options.resource_version:
            causes.append(_forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"))
        if options.continue_token:
            causes.append(_forbidden("resourceVersionMatch is forbidden when continue is provided"))
        if options.match not in ("Exact", "NotOlderThan"):
            causes.append(_unsupported(options.match, '"Exact", "NotOlderThan", ""'))
        if options.match == "Exact" and options.resource_version == "0":
            causes.append(_forbidden('resourceVersionMatch "exact" is forbidden for resourceVersion "0"'))
    if options.initial_events is not None:
        causes.append(_forbidden("sendInitialEvents is forbidden for list", "sendInitialEvents"))
    return causes


def _check_watch(options: ListOptions) -> list[StatusCause]:
    causes = []
    if options.initial_events is not None and options.match != "NotOlderThan":
        causes.append(_forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"))
    if options.match:
        if options.initial_events is None:
            causes.append(
                _forbidden("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
            )
        if options.match != "NotOlderThan":
            causes.append(_unsupported(options.match, '"NotOlderThan"'))
        if options.continue_token:
            causes.append(_forbidden("resourceVersionMatch is forbidden when continue is provided"))
    return causes
