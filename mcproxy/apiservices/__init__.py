"""API services: group-versions that other API servers serve, in addition to a server's backend (kube-aggregator)."""
