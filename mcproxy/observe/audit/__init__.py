"""The audit log, in the form of a kube-apiserver's own (audit.k8s.io/v1), at the level Metadata.

`event` defines the event and its stages, `values` the values of its keys, `log` the open file. The pipeline reports
each stage (`proxy.audit_trail`).

Source: k8s.io/apiserver, `pkg/apis/audit/v1`, `pkg/audit`, `pkg/endpoints/filters` (audit.go, authn_audit.go). A
kube-apiserver writes an event before it answers. Here a thread writes it at most 0.1 s later, so that a slow disk never
blocks a request. Events that exceed a queue of 16 MiB are lost, counted and reported.
"""
