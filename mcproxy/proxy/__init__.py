"""Handles a request to an API server from its head to the response; `pipeline` runs the steps in order."""
