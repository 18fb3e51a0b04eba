"""All that is NATS in the app: its event plane's options, its operators' commands, its server."""
