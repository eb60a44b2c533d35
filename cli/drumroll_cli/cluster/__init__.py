"""Jobs on a Kubernetes cluster, over the kubeconfig. Only `connection` speaks to an API server; the rest is pure or
typer's."""
