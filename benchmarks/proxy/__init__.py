"""The request path against other proxies and routers."""
