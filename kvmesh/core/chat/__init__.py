"""Chat requests and chat templates: what of a request decides its prompt tokens."""
