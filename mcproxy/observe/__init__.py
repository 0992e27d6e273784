"""Observability: the record of a finished request, and the access log.

`record` is a leaf that any package may use; the writers own files and threads and belong to the daemon. Peers choose
most of the contents of a record, so every writer escapes and bounds values.
"""
