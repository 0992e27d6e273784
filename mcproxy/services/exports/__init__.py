"""The desired state of exported services in every cluster, computed only from what the clusters show."""
