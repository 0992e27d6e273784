"""Translates Ingresses of Kubernetes and the similar objects of Karmada to ingresses and exports of services.

Sources: networking.k8s.io/v1 Ingress; Karmada's networking.karmada.io/v1alpha1 MultiClusterIngress, whose spec is that
of an Ingress, and MultiClusterService; ingress-nginx's documentation of its annotations.
"""
