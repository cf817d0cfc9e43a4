"""The operator: reconciles EngineCluster and EngineCore resources into pods.

`api` describes objects, `plan` decides, `kube` talks to the API server, `handlers` hears its
watches; the modules here join them into one running process. What may not come here: ZMQ, and
whatever happens inside a pod.
"""
