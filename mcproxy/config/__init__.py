"""Loading of the configuration: YAML with source marks, JSON Schema, cross-references, kubeconfigs, a frozen model.

Nothing here opens a socket or uses the reactor. `model` is a leaf that any package may import.
"""
