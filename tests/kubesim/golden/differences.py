"""Recordings that the simulated cluster does not reproduce, each with the reason."""

from __future__ import annotations

AGGREGATION = "no aggregated API servers (APIService objects are plain data)"
OPENAPI = "documents name fewer parameters than the real ones"
CRD_LIFE = "needs the recorded life of a CRD beside the watch; see test_crd.py"
PROTOBUF = "protobuf answers are not made: JSON or 406 instead"
COMPACTION = "a compaction expires at once what it covers, as there is no watch cache before the storage"
CHANGED = "an object was changed between this recording and that of the lists, and the change is in neither"
METRICS = "too few metrics for Go to gzip them (less than 128 KiB), and another length"
KUBELET = "the kubelet of the simulated cluster is always up"
DEPLOYMENTS = "a Deployment of the namespace prod is in no other recording, so its spec is not known"
ADDRESSES = "the address of a Service is random, and only this one is in the body"

DIFFERENCES: dict[str, str] = {
    "aggregated-down/apis-aggregated": AGGREGATION,
    "aggregated-down/apis-legacy": AGGREGATION,
    "aggregated-down/apiservice": AGGREGATION,
    "aggregated-down/group": AGGREGATION,
    "aggregated-down/group-version": AGGREGATION,
    "aggregated-down/resource": AGGREGATION,
    "auth/oidc-jwks-any": "each cluster makes its own signing key, and the body is nothing else",
    "auth/ssrr-alice": "/.well-known is open to all users in the recorded build only, not in an upstream one",
    "crd/429-just-established": "a CRD is served at once: there is no time in which its storage is being set up",
    "crd/watch-crds": CRD_LIFE,
    "crd/watch-while-crd-deleted": CRD_LIFE,
    "crd/watchlist-while-crd-deleted": CRD_LIFE,
    "discovery/apis-accept-protobuf": PROTOBUF,
    "errors/406-cr-protobuf-only": PROTOBUF,
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
    "impersonation/watch-impersonated": CHANGED,
    "kubelet/down-exec-spdy": KUBELET,
    "kubelet/down-log": KUBELET,
    "kubelet/down-portforward-spdy": KUBELET,
    "kubelet/exec-no-command": KUBELET,
    "kubelet/up-log-limitbytes": "the recorded kubelet was a stand-in that ignored limitBytes",
    "list/east/clusterroles-table": "9 default ClusterRoles of 72: those of controllers and nodes bind nobody here",
    "list/east/table-deployments-all": DEPLOYMENTS,
    "list/west/table-deployments-all": DEPLOYMENTS,
    "openapi/v2-protobuf-head": "there is no gnostic protobuf document; kubectl then takes JSON",
    "openapi/v3-crd": OPENAPI,
    "partialmeta/clientgo-accept": PROTOBUF,
    "probes/metrics-head": METRICS,
    "writes/create-generatename": "the generated suffix is random",
    "writes/service-create": ADDRESSES,
    "writes/service-delete": ADDRESSES,
}

WATCH_DIFFERENCES: dict[str, str] = {
    "watch/cm-timeout3": "ends after three seconds of a script that is replayed faster",
}
