"""Chats: what of a request decides its prompt tokens, templates, and how an answer ends."""
