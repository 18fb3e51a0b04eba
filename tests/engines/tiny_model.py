"""A model directory that vLLM serves in seconds: a real tokenizer and template, dummy weights."""

import json
from pathlib import Path

from tests.unit.app.prompts.tokenizer_models import train, write_model

VOCABULARY = 2048
CONTEXT_TOKENS = 1024

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT_TOKENS,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 2,
}


def write_tiny_model(directory: Path) -> Path:
    """Write a Qwen3 of 0.3 M parameters, to be started with `--load-format dummy`."""
    write_model(directory, tokenizer=train(VOCABULARY - 16))
    (directory / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return directory
