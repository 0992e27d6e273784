"""Requests that cannot be decided while a member is away: 503 with Retry-After, so clients wait and keep their state.

A 404 is taken for "gone", a 410 for "list again", and a list without a cluster's objects deletes them in an informer's
store: so each of them is answered only where it is known. A member in scope of the request is, for its user,

    allowed   up: what it has is known                    away: it may have what is not known here
    refused   by its own last decision, by the server's rules or policies: for this user it has nothing
    undecided it cannot be asked for the user's rights: it may have what is asked for
    absent    not known to have the resource, and it cannot be asked now: it may have it

    request                               allowed, away    refused             undecided, absent
    get, write, subresource: not known    503              as without it       503
    … known in another member             that object      that object         that object
    list of one name that is not there    503              as without it       503
    list, watch from "" or "0"            `unavailable`    left out, Warning   left out, Warning (Fail: 503)
    NotOlderThan with its part            `unavailable`    left out, Warning   503
    Exact, continue with its part         as it is held    410                 503
    watch resumed at its part             continues        410                 503
    running watch                         continues        410                 continues, or 503 if it is up

All refuse: 403. Nothing of this depends on objects of members that do not allow the request. Source: reference
"list-watch", Members that are down.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from mcproxy.aggregate.resource_version.reader import Expired
from mcproxy.kube.apiserver_errors import qualified
from mcproxy.kube.status import StatusError, retry_after

if TYPE_CHECKING:
    from mcproxy.aggregate.request import LeftOut
    from mcproxy.aggregate.view.view import View

NOT_REACHED = "it cannot be reached"
RETRY_AFTER = 1
"""Seconds after which a client may try again."""


class NotHeld(StatusError):
    """503: a member that is away was not followed up to a version that was asked for."""

    def __init__(self, member: str) -> None:
        message = f"cluster {member} is unavailable, and its objects of that resource version are not known here"
        refusal = retry_after(503, message, RETRY_AFTER, name=member)
        super().__init__(503, message, details=refusal.details, headers=refusal.headers)


def not_known(what: str, member: str, why: str) -> StatusError:
    """Return the 503 of a request for an object (`pods "web"`) that a member may have."""
    return retry_after(503, f"it is not known whether cluster {member} has {what}: {why}", RETRY_AFTER)


def may_have(view: View, namespace: str, left_out: Iterable[LeftOut], away: Iterable[str]) -> list[tuple[str, str]]:
    """Return the members that may have objects of `namespace` that are not known here, each with the reason.

    `away` are those of the members that allow the request whose present state is not known.
    """
    left = {each.member: each for each in left_out}
    found = [
        (member.name, left[member.name].why)
        for member in view.members
        if member.name in left and left[member.name].undecided and member.covers(namespace)
    ]
    found += [(name, NOT_REACHED) for name in away]
    found += [(name, NOT_REACHED) for name in view.unasked(namespace) if name not in left or left[name].undecided]
    return found


def check_absent(what: str, view: View, namespace: str, left_out: Iterable[LeftOut], away: Iterable[str]) -> None:
    """Raise StatusError (503) if a member may have an object that no other has; arguments as of `may_have`."""
    for member, why in may_have(view, namespace, left_out, away):
        raise not_known(what, member, why)


def check_readable(view: View, members: Collection[str], namespace: str, name: str) -> None:
    """Raise StatusError (503) if one of the members has an object of that name that cannot be taken apart."""
    for member in view.members:
        if member.name in members and member.may_have_unreadable(namespace, name):
            message = f"{subject(view, name)} of cluster {member.name} cannot be read here"
            raise retry_after(503, message, RETRY_AFTER, name=name)


def check_parts(view: View, parts: Mapping[str, int], namespace: str, left_out: Sequence[LeftOut]) -> None:
    """Raise StatusError (503) if a version has a part of a member that only cannot be asked now.

    An answer without it, or a 410 upon which the client lists without it, would be taken for the end of its objects.
    """
    for member, why in may_have(view, namespace, left_out, ()):
        if parts.get(member):
            message = f"the resource version has a part of cluster {member}, whose objects cannot be shown now: {why}"
            raise retry_after(503, message, RETRY_AFTER)


def read_version(
    view: View, text: str, owner: str | None, name: str, namespace: str, left_out: Iterable[LeftOut]
) -> dict[str, int] | None:
    """Read a version as `VersionReader.read` does; `name` is that of the only object that is asked for, "" for more.

    `owner` is the member that has it, of those that allow the request. Raises StatusError: 503 for a plain number of an
    object whose owner may be away.
    """
    try:
        return view.reader.read(text, owner)
    except Expired:
        if name and owner is None:
            check_absent(subject(view, name), view, namespace, left_out, ())
        raise


def subject(view: View, name: str) -> str:
    """Return an object as messages name it: `pods "web"`."""
    gvr = view.resource.gvr
    return f'{qualified(gvr.group, gvr.resource)} "{name}"'
