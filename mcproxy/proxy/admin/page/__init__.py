"""The status page: one document without outside assets, made anew for each request."""
