"""Recordings that the simulated cluster does not reproduce, each with the reason."""

from __future__ import annotations

AGGREGATION = "no aggregated API servers (APIService objects are plain data)"
OPENAPI = "documents are smaller than the real ones, so hashes differ; one Vary less"
TOKEN = "reviews the token of the recorded cluster, whose key is not known"
CRD_LIFE = "needs the recorded life of a CRD beside the watch; see test_crd.py"
PROTOBUF = "protobuf answers are not made: JSON or 406 instead"
FLOW_CONTROL = "flow control is a fault on demand, whose text answer lacks nosniff and the final newline"
COMPACTION = "a compaction expires at once what it covers (no cache before etcd); later changes are in no list"
CHANGED = "a change made between the recordings is in no list"
METRICS = "few metrics, not gzipped"
KUBELET = "the kubelet of the simulated cluster is always up, and has a log of its own"
ENDPOINTS = "the Endpoints objects are in no recording"
DEPLOYMENTS = "a Deployment of another namespace is in no list"
ADDRESSES = "addresses of Services are random"
ZONES = "admission does not copy the zone of a node to a pod that is bound; empty structs that Go writes are left out"

DIFFERENCES: dict[str, str] = {
    "aggregated-down/apis-aggregated": AGGREGATION,
    "aggregated-down/apis-legacy": AGGREGATION,
    "aggregated-down/apiservice": AGGREGATION,
    "aggregated-down/group": AGGREGATION,
    "aggregated-down/group-version": AGGREGATION,
    "aggregated-down/openapi-v3": OPENAPI,
    "aggregated-down/resource": AGGREGATION,
    "auth/oidc-jwks-any": "the key is of the recorded cluster",
    "auth/ssrr-alice": "one default binding of non-resource URLs fewer",
    "auth/tokenreview-audience": TOKEN,
    "auth/tokenreview-invalid-jwt": TOKEN,
    "auth/tokenreview-valid-sa": TOKEN,
    "crd/429-just-established": "a CRD is served at once here",
    "crd/watch-crds": CRD_LIFE,
    "crd/watch-while-crd-deleted": CRD_LIFE,
    "crd/watchlist-while-crd-deleted": CRD_LIFE,
    "discovery/apis-accept-protobuf": PROTOBUF,
    "errors/406-cr-protobuf-only": PROTOBUF,
    "errors/429-apf-create": FLOW_CONTROL,
    "errors/429-apf-discovery": FLOW_CONTROL,
    "errors/429-apf-list": FLOW_CONTROL,
    "errors/429-apf-watch": FLOW_CONTROL,
    "errors/429-inflight-discovery": FLOW_CONTROL,
    "errors/429-inflight-healthz": FLOW_CONTROL,
    "errors/429-inflight-list": FLOW_CONTROL,
    "expired/compacted-notolder": COMPACTION,
    "expired/compacted-watch": COMPACTION,
    "expired/compacted-watch-cr": COMPACTION,
    "expired/compacted-watch-events": COMPACTION,
    "expired/compacted-watch-protobuf": PROTOBUF,
    "expired/compacted-watch-rv1": COMPACTION,
    "expired/compacted-watch-table": COMPACTION,
    "expired/restarted-notolder": CHANGED,
    "expired/restarted-watch-protobuf": PROTOBUF,
    "expired/restarted-watchlist-old": CHANGED,
    "get/get-configmap-protobuf": PROTOBUF,
    "get/get-configmap-protobuf-or-json": PROTOBUF,
    "gzip/metrics": METRICS,
    "impersonation/watch-impersonated": "a pod was changed between the recordings",
    "kubelet/down-exec-spdy": KUBELET,
    "kubelet/down-log": KUBELET,
    "kubelet/down-log-follow": "the kubelet of the simulated cluster is always up, and follows its own log",
    "kubelet/down-portforward-spdy": KUBELET,
    "kubelet/exec-no-command": "refused here before the kubelet is asked, with another text",
    "kubelet/exec-spdy-post-only-verb-create": "the rights of frank are in no recording",
    "kubelet/service-proxy": ENDPOINTS,
    "kubelet/service-proxy-by-number": ENDPOINTS,
    "kubelet/service-proxy-https": ENDPOINTS,
    "kubelet/service-proxy-no-ready-endpoints": ENDPOINTS,
    "kubelet/up-exec-spdy-bad-protocol": "an Audit-Id too many",
    "kubelet/up-log-follow": KUBELET,
    "kubelet/up-log-limitbytes": KUBELET,
    "list/east/clusterroles-table": "the default ClusterRoles are fewer",
    "list/east/events-events-k8s-io": "an empty reportingInstance is shown",
    "list/east/table-deployments-all": DEPLOYMENTS,
    "list/west/table-deployments-all": DEPLOYMENTS,
    "openapi/v2-304": OPENAPI,
    "openapi/v2-406": OPENAPI,
    "openapi/v2-protobuf-head": PROTOBUF,
    "openapi/v2-star": OPENAPI,
    "openapi/v3-apps-v1-304": OPENAPI,
    "openapi/v3-apps-v1-wronghash": OPENAPI,
    "openapi/v3-crd": OPENAPI,
    "openapi/v3-root": OPENAPI,
    "partialmeta/clientgo-accept": PROTOBUF,
    "probes/metrics-head": METRICS,
    "writes/create-generatename": "generated names are random",
    "writes/patch-accept-partialmeta": "a field that was set between the recordings is in no list",
    "writes/resize": "a resize of a pod is let through without a look at its node",
    "writes/service-create": ADDRESSES,
    "writes/service-delete": ADDRESSES,
}

WATCH_DIFFERENCES: dict[str, str] = {
    "watch/cm-timeout3": "ends after three seconds of a script that is replayed faster",
    "watch/pods-all": ZONES,
    "watch/pods-field-node": ZONES,
    "watch/pods-field-phase": ZONES,
    "watch/pods-table": ZONES,
}
