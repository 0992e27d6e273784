"""The owners of live state that a Runtime is built with; their classes depend on the process (`process_parts`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from mcproxy.aggregate.request import AggregateHandler
from mcproxy.config import model
from mcproxy.identity.authorization.authorizer import ReviewersByCluster
from mcproxy.services.endpoint_table import EndpointTable
from mcproxy.upstream.cluster import Cluster

if TYPE_CHECKING:
    from mcproxy.aggregate.discovery.service_visibility import ServiceVisibility
    from mcproxy.apiservices.availability import Availability


class PreparedAggregates(Protocol):
    """The aggregates of a configuration that is not in force yet."""

    @property
    def handlers(self) -> Mapping[str, AggregateHandler]:
        """What answers the requests to each aggregate, by its name."""

    def stale_reviewers(self, server: str, aggregate: str, reviewers: ReviewersByCluster) -> ReviewersByCluster:
        """Return reviewers of an aggregate's members whose last decisions hold while a member is away."""

    def documents(self, server: model.Server, backend: str, visibility: ServiceVisibility) -> AggregateHandler:
        """Return what answers the requests to a server with API services that need its merged documents.

        `backend` is its aggregate or, where it has none, a cluster that requests of it may go to.
        """

    def activate(self) -> None:
        """Put the configuration in force: reflectors start and stop, views follow."""


class AggregatesOwner(Protocol):
    """The one owner of all live state of aggregates (`aggregate.aggregates.Aggregates`)."""

    def prepare(
        self,
        config: model.Config,
        clusters: Mapping[str, Cluster],
        reviewers: Callable[[model.SubjectAccessReview], ReviewersByCluster],
    ) -> PreparedAggregates:
        """Prepare a configuration; nothing that is live has changed until it is activated.

        `reviewers` returns, for cache times, the reviewers of what each member would let a user do.
        """


class AvailabilityOwner(Protocol):
    """The availability of API services as this process knows it (`daemon.lazy.lazy_prober`)."""

    @property
    def known(self) -> Availability:
        """What is known now, over all reloads."""

    def activate(self, config: model.Config, clusters: Mapping[str, Cluster]) -> None:
        """Follow a configuration that has come into force."""

    def stop(self) -> None:
        """End everything at once."""


class ServicesOwner(Protocol):
    """Services of this process (`daemon.lazy.lazy_services`)."""

    @property
    def endpoints(self) -> EndpointTable:
        """The endpoints of all backends of ingresses; the same object over all reloads."""

    def activate(self, config: model.Config, clusters: Mapping[str, Cluster]) -> None:
        """Follow a configuration that has come into force."""
