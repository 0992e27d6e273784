"""Request handling, from the head to the answer; `pipeline` has the steps in order."""
