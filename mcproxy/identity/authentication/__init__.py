"""Authentication: from a request's credentials to the user who sends it."""
