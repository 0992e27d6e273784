"""KubeGateway's UpstreamCluster (proxy.kubegateway.io/v1alpha1). Source of its behaviour: its code, release 0.4."""
