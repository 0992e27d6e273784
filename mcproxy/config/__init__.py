"""From files to a frozen model: YAML with source marks, schema, cross-references, kubeconfigs.

Nothing here opens a socket or knows the reactor. `model` is a leaf that any room may import.
"""
