"""The desired state of exported services in every cluster, computed only from the state of the clusters."""
