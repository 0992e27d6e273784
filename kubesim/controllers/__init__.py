"""The scheduler, kubelets, the garbage collector and the controllers of workloads and Services."""
