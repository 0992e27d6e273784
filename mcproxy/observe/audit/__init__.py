"""The audit log, in the form of a kube-apiserver's own (audit.k8s.io/v1), at the level Metadata.

`event` has the event and its stages, `values` the values of its keys, `log` the open file. The pipeline decides when a
stage is reached (`proxy.audit_trail`).

Source: k8s.io/apiserver, `pkg/apis/audit/v1`, `pkg/audit`, `pkg/endpoints/filters` (audit.go, authn_audit.go). A
kube-apiserver writes an event before it answers; here a thread writes it at most 0.1 s later, so that a slow disk never
blocks a request; events beyond a queue of 16 MiB are counted and reported.
"""
