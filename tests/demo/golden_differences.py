"""Recordings that the simulated cluster does not reproduce, each with the reason."""

from __future__ import annotations

NO_KUBELET = "the recorded kubelet was down; the simulated one never is"

DIFFERENCES: dict[str, str] = {
    "auth/oidc-jwks-any": "the key is each cluster's own",
    "auth/ssrr-alice": "the recorded server had one more rule for /.well-known",
    "impersonation/watch-impersonated": "the pods are those of a later moment",
    "kubelet/down-exec-spdy": NO_KUBELET,
    "kubelet/down-log": NO_KUBELET,
    "kubelet/down-portforward-spdy": NO_KUBELET,
    "kubelet/exec-no-command": NO_KUBELET,
    "kubelet/up-exec-spdy-bad-protocol": "the recorded answer of the kubelet had no Audit-Id",
    "kubelet/up-log-limitbytes": "the recorded kubelet was a stand-in that ignored limitBytes",
}
