"""Questions of gateways where a request should go: decided as any request, and watched."""
