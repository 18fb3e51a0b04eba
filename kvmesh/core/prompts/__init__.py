"""From text to token ids: tokenizers, their caches, and the check against the engine."""
