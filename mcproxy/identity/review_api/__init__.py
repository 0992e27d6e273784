"""The review APIs (TokenReview, SubjectAccessReview) that mcproxy serves to API servers in place of a kube-apiserver.

It is the server side of "delegated authentication and authorization" of k8s.io/apiserver.
"""
