"""The way of a request: from its head to the handler that answers it (`pipeline` tells the story in order)."""
