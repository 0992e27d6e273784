"""Services across clusters: exports (by the configuration or by ServiceExports) and ingresses."""
