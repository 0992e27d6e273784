"""mcproxy: an nginx for Kubernetes. One daemon, one YAML file, in front of one or many kube-apiservers."""

__version__ = "0.1.0"
