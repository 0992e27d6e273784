"""What the proxy knows of a cluster: its endpoints, their health, the credential, and control traffic to it."""
