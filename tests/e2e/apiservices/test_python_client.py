"""The `kubernetes` Python package with objects of an API server behind the proxy."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from tests.e2e.apiservices.environment import THINGS, APIServices

kubernetes: Any = importlib.import_module("kubernetes")  # it has no types
KIND = (THINGS, "v1alpha1", "demo", "widgets")


@contextmanager
def objects(services: APIServices, user: str) -> Iterator[Any]:
    with kubernetes.config.new_client_from_config(str(services.kubeconfig), context=user) as client:
        yield kubernetes.client.CustomObjectsApi(client)


def test_objects_are_made_changed_watched_and_deleted(services: APIServices) -> None:
    with objects(services, "maker") as api, objects(services, "alice") as readers:
        since = readers.list_namespaced_custom_object(*KIND)["metadata"]["resourceVersion"]
        body = {"apiVersion": f"{THINGS}/v1alpha1", "kind": "Widget", "metadata": {"name": "py"}, "spec": {"size": 1}}
        made = api.create_namespaced_custom_object(*KIND, body)
        assert made["metadata"]["namespace"] == "demo"
        patched = api.patch_namespaced_custom_object(*KIND, "py", {"spec": {"size": 2}})
        assert patched["spec"] == {"size": 2}
        with pytest.raises(ApiException) as conflict:
            api.replace_namespaced_custom_object(*KIND, "py", made)
        assert conflict.value.status == 409
        api.delete_namespaced_custom_object(*KIND, "py")
        watch = kubernetes.watch.Watch()
        events = []
        for event in watch.stream(
            readers.list_namespaced_custom_object, *KIND, resource_version=since, timeout_seconds=60
        ):
            if event["object"]["metadata"]["name"] == "py":
                events.append((event["type"], event["object"]["spec"]["size"]))
            if event["type"] == "DELETED":
                watch.stop()
        assert events == [("ADDED", 1), ("MODIFIED", 2), ("DELETED", 2)]


def test_who_may_only_read_is_refused_as_by_a_cluster(services: APIServices) -> None:
    with objects(services, "alice") as api, pytest.raises(ApiException) as refused:
        api.delete_namespaced_custom_object(*KIND, "any")
    assert (refused.value.status, refused.value.reason) == (403, "Forbidden")
