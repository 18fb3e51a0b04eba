"""Questions of gateways where a request shall go: decided as any request, and watched."""
