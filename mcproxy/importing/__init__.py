"""Makes configurations from kubeconfigs, Ingresses, and objects of KubeGateway and Karmada.

Input counts as hostile: its size is bounded, types are checked, only valid names become file names, and mcproxy's own
loader checks the result before it is written. The result never allows a request that the original refused. Settings
that cannot be expressed exactly are expressed more narrowly or refused, and are reported in both cases.
"""
