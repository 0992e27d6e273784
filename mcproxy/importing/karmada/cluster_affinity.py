"""Which clusters a ClusterAffinity selects (karmada: pkg/util/selector.go, ClusterMatches)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mcproxy.importing.object_files import Fields, UnusableError

KEYS = ("labelSelector", "fieldSelector", "clusterNames", "exclude")


@dataclass(frozen=True, slots=True)
class Facts:
    """The properties of a cluster that affinities select by."""

    name: str
    labels: Mapping[str, str]
    provider: str
    region: str
    zones: Sequence[str]

    @classmethod
    def of(cls, cluster: Fields) -> Facts:
        metadata, spec = cluster.fields("metadata"), cluster.fields("spec")
        return cls(
            metadata.text("name"), metadata.labels("labels"), spec.text("provider"), spec.text("region"),
            spec.texts("zones"),
        )  # fmt: skip


Affinity = Callable[[Facts], bool]


def affinity(given: Fields) -> Affinity:
    """Return the test of an affinity; an empty one selects every cluster, as in Karmada.

    Raises UnusableError for unknown operators: ignoring one could select more clusters than intended.
    """
    excluded, names = frozenset(given.texts("exclude")), frozenset(given.texts("clusterNames"))
    tests = [*_labels(given.fields("labelSelector")), *_fields(given.fields("fieldSelector"))]

    def selects(cluster: Facts) -> bool:
        if cluster.name in excluded or (names and cluster.name not in names):
            return False
        return all(test(cluster) for test in tests)

    return selects


def _labels(selector: Fields) -> list[Affinity]:
    for other in selector.others("matchLabels", "matchExpressions"):
        raise UnusableError(f"{other}: is not known")
    equal = selector.labels("matchLabels")
    tests: list[Affinity] = [lambda cluster: all(cluster.labels.get(key) == value for key, value in equal.items())]
    for expression in selector.items("matchExpressions"):
        key = expression.text("key")
        tests.append(_test(expression, lambda cluster, key=key: _values(cluster.labels.get(key))))  # type: ignore[misc]
    return tests


def _fields(selector: Fields) -> list[Affinity]:
    for other in selector.others("matchExpressions"):
        raise UnusableError(f"{other}: is not known")
    tests = []
    for expression in selector.items("matchExpressions"):
        key = expression.text("key")
        if key == "zone":
            tests.append(_test(expression, lambda cluster: cluster.zones))
        elif key == "provider":
            tests.append(_test(expression, lambda cluster: _values(cluster.provider or None)))
        elif key == "region":
            tests.append(_test(expression, lambda cluster: _values(cluster.region or None)))
        else:
            raise UnusableError(f"{expression.at('key')}: is none of provider, region and zone")
    return tests


def _test(expression: Fields, values_of: Callable[[Facts], Sequence[str]]) -> Affinity:
    """Return the test of one expression; a cluster has one value of most keys, and several zones."""
    operator, wanted = expression.text("operator"), frozenset(expression.texts("values"))
    if operator in ("In", "NotIn") and not wanted:
        raise UnusableError(f"{expression.at('values')}: {operator} needs values")
    if operator == "In":
        return lambda cluster: not wanted.isdisjoint(values_of(cluster))
    if operator == "NotIn":
        return lambda cluster: wanted.isdisjoint(values_of(cluster))
    if operator == "Exists":
        return lambda cluster: bool(values_of(cluster))
    if operator == "DoesNotExist":
        return lambda cluster: not values_of(cluster)
    raise UnusableError(f"{expression.at('operator')}: is none of In, NotIn, Exists and DoesNotExist")


def _values(value: str | None) -> Sequence[str]:
    return () if value is None else (value,)
