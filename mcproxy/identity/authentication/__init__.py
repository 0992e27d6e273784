"""Authentication: finds the user of a request from its credentials."""
