"""What a request asks, as the question of a SubjectAccessReview."""

from __future__ import annotations

import pytest

from mcproxy.identity.authorization.attributes import Attributes, attributes_of
from mcproxy.kube.requestinfo import parse


def ask(method: str, target: str) -> Attributes:
    return attributes_of(parse(method.encode(), target.encode()), target.encode())


def test_a_resource_request_names_all_that_its_path_names() -> None:
    asked = ask("PATCH", "/apis/apps/v1/namespaces/demo/deployments/web/status?fieldManager=x")
    assert asked == Attributes("patch", "apps", "v1", "deployments", "status", "demo", "web")


def test_a_non_resource_request_is_its_method_and_path() -> None:
    assert ask("GET", "/healthz/etcd?verbose=1") == Attributes("get", path="/healthz/etcd", is_resource=False)


def test_what_stands_below_a_proxy_subresource_makes_no_new_question() -> None:
    base = "/api/v1/namespaces/demo/services/web/proxy"
    assert ask("GET", f"{base}/a?x=1") == ask("GET", f"{base}/b/c")


@pytest.mark.parametrize(
    ("method", "verb", "query"), [("GET", "list", ""), ("GET", "watch", "watch=1&"), ("DELETE", "deletecollection", "")]
)
def test_selectors_of_collections_are_part_of_the_question(method: str, verb: str, query: str) -> None:
    asked = ask(method, f"/api/v1/namespaces/demo/pods?{query}fieldSelector=spec.nodeName%3Dn1&labelSelector=a+in+(b)")
    assert (asked.verb, asked.field_selector, asked.label_selector) == (verb, "spec.nodeName=n1", "a in (b)")


def test_a_selector_whose_name_is_escaped_is_found() -> None:
    assert ask("GET", "/api/v1/pods?field%53elector=a%3Db").field_selector == "a=b"


def test_the_first_of_two_selectors_counts_as_it_does_for_the_server() -> None:
    assert ask("GET", "/api/v1/pods?labelSelector=a&labelSelector=b").label_selector == "a"


@pytest.mark.parametrize(
    "target", ["/api/v1/namespaces/demo/pods/x?fieldSelector=a%3Db", "/api/v1/watch/pods?fieldSelector=a%3Db",
               "/apis/apps/v1/watch/deployments?fieldSelector=a%3Db"],
)  # fmt: skip
def test_no_selector_is_claimed_where_the_server_may_ignore_it(target: str) -> None:
    assert ask("GET", target).field_selector == ""


def test_a_selected_name_is_part_of_the_question() -> None:
    asked = ask("GET", "/api/v1/namespaces/demo/pods?fieldSelector=metadata.name%3Dweb")
    assert (asked.verb, asked.name, asked.field_selector) == ("list", "web", "metadata.name=web")


def test_a_deletecollection_is_not_asked_about_by_the_name_that_its_selector_has() -> None:
    target = b"/api/v1/namespaces/demo/pods?fieldSelector=metadata.name%3Dweb"
    asked = attributes_of(parse(b"DELETE", target), target)
    assert (asked.verb, asked.name, asked.field_selector) == ("deletecollection", "", "metadata.name=web")
