"""Request handling, from the head to the response; `pipeline` has the steps in order."""
