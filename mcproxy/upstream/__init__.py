"""Live clusters: endpoints and their health, load balancing, the proxy's credential, and the proxy's own requests."""
