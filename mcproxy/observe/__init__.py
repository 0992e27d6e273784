"""Observability: request records, access and audit logs, metrics, tracing, and tables of the status document.

`record` imports no other package, and any package may use it. The daemon owns the writers, which have files and
threads. Peers choose most values of a record, so every writer escapes values and limits their length.
"""
