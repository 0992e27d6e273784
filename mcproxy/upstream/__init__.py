"""Clusters: endpoints and their health, load balancing, the proxy's credential, and control traffic."""
