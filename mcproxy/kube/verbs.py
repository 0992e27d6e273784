"""The verbs of requests, as authorizers see them. Source: k8s.io/apiserver `pkg/endpoints/request/requestinfo.go`."""

from __future__ import annotations

#: Verbs of requests for resources.
RESOURCE_VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "proxy")
#: Verbs of all other requests: HTTP methods in lower case. CONNECT and TRACE are refused before any rule is looked at.
METHODS = ("get", "post", "put", "patch", "delete", "head", "options")
