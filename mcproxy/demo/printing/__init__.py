"""Tables: what `kubectl get` prints, column by column."""
