"""Services across clusters: those that the file or clusters export, and ingresses from outside."""
