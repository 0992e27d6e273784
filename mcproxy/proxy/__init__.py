"""Request handling from the request head to the response; `pipeline` runs the steps in order."""
