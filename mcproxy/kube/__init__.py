"""Conventions of Kubernetes as plain functions and values, independent of this proxy and of the reactor."""
