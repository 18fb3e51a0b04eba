"""An engine's KV events on their way from its socket to prefix-closed events of content hashes."""
