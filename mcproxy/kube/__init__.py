"""Kubernetes' own conventions, as plain functions and values; nothing here knows this proxy or the reactor."""
