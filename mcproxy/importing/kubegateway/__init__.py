"""Translates KubeGateway's UpstreamCluster (proxy.kubegateway.io/v1alpha1). Source: KubeGateway's code, release 0.4."""
