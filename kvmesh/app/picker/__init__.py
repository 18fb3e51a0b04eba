"""A gateway in front: its questions decided and watched, its Kubernetes objects, Envoy itself."""
