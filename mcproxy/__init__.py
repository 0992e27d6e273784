"""mcproxy: an nginx for Kubernetes. One daemon, one YAML file, in front of one or many kube-apiservers."""

from mcproxy.compiled import select

__version__ = "0.1.0"

BUILD = select()
"""``compiled`` or ``pure``: what runs (compiled.py)."""
