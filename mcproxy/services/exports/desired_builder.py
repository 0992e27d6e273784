"""The desired objects of one service in all clusters, while they are computed, and the problems found meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcproxy.services.exports.existing_objects import ExistingObjects
from mcproxy.services.exports.export_types import ClusterView, Desired, Exports, Problem, ProblemKind
from mcproxy.services.exports.object_keys import ObjectKey, ServiceKey
from mcproxy.services.exports.object_names import label_value


class ProblemReport:
    """The problems of one service; owned by one call of the function that works out its desired state."""

    __slots__ = ("_found", "_key", "export")

    def __init__(self, key: ServiceKey, export: str = "") -> None:
        self._key = key
        self._found: dict[tuple[str, str, ProblemKind], tuple[int, str]] = {}
        self.export = export
        """The entry of `serviceExports` that what follows is about; "" for what was discovered."""

    def count(self, cluster: str, kind: ProblemKind, message: str) -> None:
        """Count a problem; of several the message that sorts first is kept, so that their order does not matter."""
        place = (self.export, cluster, kind)
        number, first = self._found.get(place, (0, message))
        self._found[place] = (number + 1, min(first, message))

    def message(self, cluster: str, kind: ProblemKind) -> str:
        """Return what was counted of a kind; "": nothing."""
        return self._found.get((self.export, cluster, kind), (0, ""))[1]

    def problems(self) -> tuple[Problem, ...]:
        """Return what was counted, in the order of exports' names, clusters and kinds."""
        return tuple(
            Problem(self._key, kind, cluster, export, message if number == 1 else f"{message} (and {number - 1} more)")
            for (export, cluster, kind), (number, message) in sorted(self._found.items())
        )


class DesiredBuilder:
    """One service: what is known of it, and what has been worked out."""

    __slots__ = ("_observed", "exports", "kept", "key", "objects", "owners", "report", "statuses", "views")

    def __init__(self, key: ServiceKey, views: Mapping[str, ClusterView], exports: Exports) -> None:
        self.key = key
        self.views = views
        self.exports = exports
        self.report = ProblemReport(key)
        self.objects: dict[ObjectKey, dict[str, Any]] = {}
        self.statuses: dict[ObjectKey, dict[str, Any]] = {}
        self.owners: dict[ObjectKey, ObjectKey] = {}
        self.kept: set[ObjectKey] = set()
        self._observed: dict[str, ExistingObjects] = {}

    def known(self, cluster: str) -> bool:
        """Whether anything can be concluded from what is known of a cluster."""
        return known(self.views, cluster)

    def cluster_id(self, cluster: str) -> str:
        """Return the id of a cluster, as KEP-1645 has it in labels and in the status of ServiceImports."""
        view = self.views.get(cluster)
        return (view.cluster_id if view is not None else "") or label_value(cluster)

    def observed(self, cluster: str) -> ExistingObjects:
        """Return what a known cluster has under names of derived objects."""
        found = self._observed.get(cluster)
        if found is None:
            found = self._observed[cluster] = ExistingObjects(self.views[cluster])
        return found

    def done(self) -> Desired:
        """Return what has been worked out."""
        kept = frozenset(key for key in self.kept if key not in self.objects)
        return Desired(self.objects, self.statuses, kept, self.report.problems(), self.owners)


def known(views: Mapping[str, ClusterView], cluster: str) -> bool:
    """Whether anything can be concluded from what is known of a cluster."""
    view = views.get(cluster)
    return view is not None and view.known
