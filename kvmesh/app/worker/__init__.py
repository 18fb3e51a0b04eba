"""`kvmesh worker`: the sidecar that puts one engine on the mesh."""
