"""Tables, the column-by-column output of `kubectl get`."""
