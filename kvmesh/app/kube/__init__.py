"""A Kubernetes gateway's own objects, watched at the API server: pool, pods, objectives."""
