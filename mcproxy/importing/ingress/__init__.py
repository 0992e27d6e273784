"""Translates Kubernetes' Ingresses and Karmada's similar objects to mcproxy's ingresses and service exports.

Sources: networking.k8s.io/v1 Ingress; Karmada's networking.karmada.io/v1alpha1 MultiClusterIngress, whose spec is that
of an Ingress, and MultiClusterService; ingress-nginx's documentation of its annotations.
"""
