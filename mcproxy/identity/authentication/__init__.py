"""Authentication: from a request's credentials to its user."""
