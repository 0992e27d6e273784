"""Controllers and kubelets, and the objects that a cluster starts with and that change by themselves."""
