"""Reads the section `flowControls`, and checks references to its entries.

If a policy and its cluster name the same flow control, it is one limit, and a request counts once. `Exempt` sets no
limit, and does not lift the limits of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator

from mcproxy.config.model import FlowControl, FlowControlType, Queue, Server
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.entries import ListSection, Sections, reference, references
from mcproxy.config.sections.model_reader import read

# The keys of each type. TokenBucket needs qps and burst, MaxRequestsInflight one of max and maxLongRunning.
_KEYS = {
    FlowControlType.EXEMPT: (),
    FlowControlType.MAX_REQUESTS_INFLIGHT: ("max", "maxLongRunning", "per", "queue", "shared"),
    FlowControlType.TOKEN_BUCKET: ("qps", "burst", "per", "queue", "shared"),
}
_ALL_KEYS = tuple(dict.fromkeys(key for keys in _KEYS.values() for key in keys))


def flow_control(context: Context, place: Place, sections: Sections) -> FlowControl | None:
    """Return the flow control at `place`, or None if it lacks name or type (reported)."""
    written = place.text("type")
    if written is None:
        return None
    kind = FlowControlType(written)
    _check_keys(context, place, kind)
    queue, shared = place.get("queue"), place.get("shared")
    made = read(
        context,
        place,
        FlowControl,
        queue=_queue(context, queue) if queue is not None else None,
        shared=shared is not None and shared.value is True and kind is not FlowControlType.EXEMPT,
    )
    if queue is not None and made.max == 0 and not made.max_long_running:
        what = "lets requests wait in vain: max: 0 refuses all of them"
        context.warn(queue, "no-effect", what, "take it out, or raise max")
    return made if made.name else None


def _check_keys(context: Context, place: Place, kind: FlowControlType) -> None:
    for key in _ALL_KEYS:
        written = place.get(key)
        if written is not None and written.value is not False and key not in _KEYS[kind]:  # shared: false has no effect
            right = "take it out" if kind is FlowControlType.EXEMPT else f"write {_form(kind)}"
            context.error(written, f"means nothing to {kind}", right)
    if kind is FlowControlType.TOKEN_BUCKET:
        missing = [key for key in ("qps", "burst") if not place.has(key)]
        if missing:
            context.error(place, f"has no {' and no '.join(missing)}", f"write {_form(kind)}")
    elif kind is FlowControlType.MAX_REQUESTS_INFLIGHT and not (place.has("max") or place.has("maxLongRunning")):
        context.error(place, "has neither max nor maxLongRunning", f"write {_form(kind)}")


def _form(kind: FlowControlType) -> str:
    if kind is FlowControlType.TOKEN_BUCKET:
        return "qps and burst, as in {type: TokenBucket, qps: 50, burst: 100}"
    return "max, maxLongRunning or both, as in {type: MaxRequestsInflight, max: 200}"


def _queue(context: Context, place: Place) -> Queue:
    queue, timeout = read(context, place, Queue), place.get("timeout")
    if timeout is not None and queue.timeout == 0:
        context.error(timeout, "is 0", "write a duration such as 5s")
    return queue


def check_use(context: Context, sections: Sections) -> None:
    """Check that the names in clusters and policies exist, and that every flow control is named."""
    known = list(dict.fromkeys(sections.flow_controls.names))
    exempt = {control.name for control in sections.flow_controls.values if control.type is FlowControlType.EXEMPT}
    used = {place.string for place in _named_by_policies(sections.servers)}
    for cluster in sections.clusters:
        named = cluster.place.get("flowControls")
        if named is None:
            continue
        used.update(references(context, named, known, "flow control"))
        for place in named.items():
            if place.string in exempt:
                context.warn(place, "no-effect", f"{place.shown} limits nothing: it is Exempt", "take it out")
    for place in _named_by_policies(sections.servers):
        reference(context, place, known, "flow control")
    for control in sections.flow_controls:
        if control.name and control.name not in used:
            what = "no cluster and no dispatch policy refers to it, so it limits nothing"
            context.warn(control.place, "unused", what, "name it in a flowControl or flowControls, or take it out")


def _named_by_policies(servers: ListSection[Server]) -> Iterator[Place]:
    for server in servers:
        for policy in server.place.children("dispatch"):
            place = policy.get("flowControl")
            if place is not None:
                yield place
