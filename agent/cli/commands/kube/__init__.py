"""`muster kube`: the node's fitness as condition, label and taint of its Node object in Kubernetes.

`kube_command` is the command; `node_marks` says what the object should carry, without Kubernetes; `node_api` speaks
with the API server; `kube_loop` brings both together. Nothing outside imports this room.
"""
