"""The review APIs (TokenReview, SubjectAccessReview) that mcproxy serves to API servers, as their kube-apiserver would.

That is "delegated authentication and authorization" of k8s.io/apiserver, from the side of the server.
"""
