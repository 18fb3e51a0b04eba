"""Model directories that vLLM serves in seconds: a real tokenizer and template, dummy weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer

from tests.unit.app.prompts.tokenizer_models import PARTS, SPECIAL, train, write_model

VOCABULARY = 2048
CONTEXT_TOKENS = 1024
WINDOW_TOKENS = 128

Config = Mapping[str, Any]

COMMON: Final[Config] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT_TOKENS,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 2,
}

QWEN3: Final[Config] = {
    **COMMON,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "rope_theta": 10000.0,
}
"""Full attention alone, 0.3 M parameters."""

GEMMA3: Final[Config] = {
    **COMMON,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "num_hidden_layers": 6,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"],
    "sliding_window": WINDOW_TOKENS,
    "query_pre_attn_scalar": 32,
    "rope_theta": 10000.0,
    "rope_local_base_freq": 10000.0,
    "pad_token_id": 0,
}
"""Windows of 128 tokens in five of six layers."""

GRANITE: Final[Config] = {
    **COMMON,
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "num_attention_heads": 2,
    "num_hidden_layers": 4,
    "layer_types": ["mamba", "mamba", "mamba", "attention"],
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_intermediate_size": 128,
    "position_embedding_type": "rope",
    "rope_theta": 10000.0,
    "attention_multiplier": 0.125,
    "mamba_n_heads": 2,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 1,
    "mamba_chunk_size": CONTEXT_TOKENS,
}
"""Mamba 2 in three of four layers. vLLM 0.32 on a CPU has the states of whole sequences, not of
chunks: a chunk must not be shorter than the longest prompt.
"""

LFM2: Final[Config] = {
    **COMMON,
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "num_attention_heads": 2,
    "num_hidden_layers": 4,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
    "norm_eps": 1e-6,
    "block_dim": 64,
    "conv_dim": 64,
    "conv_dim_out": 64,
    "conv_L_cache": 3,
    "conv_bias": False,
    "block_ff_dim": 128,
    "block_auto_adjust_ff_dim": False,
    "rope_theta": 10000.0,
}
"""Short convolutions, whose state is kept as a mamba's is, in three of four layers."""

QWEN3_NEXT: Final[Config] = {
    **COMMON,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_attention_heads": 2,
    "num_hidden_layers": 4,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25,
}
"""Gated delta nets in three of four layers."""

IMAGE_SIDE = 112
PATCH = 14
IMAGE_TOKENS = (IMAGE_SIDE // PATCH) ** 2
IMAGE_MARK = SPECIAL[3]

LLAVA: Final[Config] = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "image_token_index": SPECIAL.index(IMAGE_MARK),
    "projector_hidden_act": "gelu",
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
    "text_config": {**COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "projection_dim": 64,
        "image_size": IMAGE_SIDE,
        "patch_size": PATCH,
    },
}
"""Sees pictures: `IMAGE_TOKENS` for each."""

_LLAVA_PROCESSOR: Final[Config] = {
    "processor_class": "LlavaProcessor",
    "image_token": IMAGE_MARK,
    "patch_size": PATCH,
    "num_additional_image_tokens": 1,
    "vision_feature_select_strategy": "default",
}
_CLIP_PROCESSOR: Final[Config] = {
    "image_processor_type": "CLIPImageProcessorPil",
    "size": {"shortest_edge": IMAGE_SIDE},
    "crop_size": {"height": IMAGE_SIDE, "width": IMAGE_SIDE},
}


AUDIO_MARKS: Final = ("<|audio_start|>", "<|audio_end|>", "<|audio_pad|>", "<asr_text>")

QWEN3_ASR: Final[Config] = {
    "architectures": ["Qwen3ASRRealtimeGeneration"],
    "model_type": "qwen3_asr",
    "torch_dtype": "bfloat16",
}
_EARS: Final[Config] = {
    "num_mel_bins": 128,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "d_model": 64,
    "max_source_positions": 1500,
    "n_window": 50,
    "n_window_infer": 800,
    "output_dim": 64,
    "downsample_hidden_size": 32,
}
_ROPE: Final[Config] = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "mrope_section": [6, 5, 5],
    "mrope_interleaved": True,
}
_ASR_PROCESSOR: Final[Config] = {
    "processor_class": "Qwen3ASRProcessor",
    "feature_extractor_type": "Qwen3ASRFeatureExtractor",
    "feature_size": 128,
    "sampling_rate": 16_000,
    "hop_length": 160,
    "chunk_length": 30,
    "n_fft": 400,
    "return_attention_mask": True,
}


def write_tiny_qwen3_asr(directory: Path) -> Path:
    """Write a model that transcribes audio as it comes."""
    tokenizer = Tokenizer.from_str(train(VOCABULARY - 16))
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in AUDIO_MARKS])
    names = ("audio_bos_token", "audio_eos_token", "audio_token")
    marks = dict(zip(names, AUDIO_MARKS, strict=False))
    words = {"tokenizer_class": "Qwen2TokenizerFast", "extra_special_tokens": marks, **marks}
    write_model(directory, template=PARTS, tokenizer=tokenizer.to_str(), config=words)
    thinker = {
        "audio_config": _EARS,
        "text_config": {**COMMON, "rope_theta": 10000.0, "rope_scaling": _ROPE},
        "audio_token_id": tokenizer.token_to_id(marks["audio_token"]),
        "audio_start_token_id": tokenizer.token_to_id(marks["audio_bos_token"]),
    }
    for name, fields in (
        ("config", {**QWEN3_ASR, "thinker_config": thinker}),
        ("processor_config", {"processor_class": "Qwen3ASRProcessor"}),
        ("preprocessor_config", _ASR_PROCESSOR),
    ):
        (directory / f"{name}.json").write_text(json.dumps(fields), encoding="utf-8")
    return directory


def write_tiny_llava(directory: Path) -> Path:
    """Write a model that sees pictures."""
    write_model(directory, template=PARTS, tokenizer=train(VOCABULARY - 16))
    _write(directory, LLAVA, _LLAVA_PROCESSOR, _CLIP_PROCESSOR)
    return directory


SOUND_RATE = 16_000
"""Samples a second."""

SOUND_MARK = IMAGE_MARK
QWEN2_AUDIO: Final[Config] = {
    "architectures": ["Qwen2AudioForConditionalGeneration"],
    "model_type": "qwen2_audio",
    "audio_token_index": SPECIAL.index(SOUND_MARK),
    "torch_dtype": "bfloat16",
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
    "text_config": {
        **COMMON,
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "num_attention_heads": 2,
        "tie_word_embeddings": False,
    },
    "audio_config": {
        "model_type": "qwen2_audio_encoder",
        "num_mel_bins": 80,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "d_model": 64,
        "max_source_positions": 1500,
    },
}
"""Hears half a minute at most, 25 tokens a second."""

_SOUND_PROCESSOR: Final[Config] = {
    "processor_class": "Qwen2AudioProcessor",
    "audio_token": SOUND_MARK,
    "audio_bos_token": SPECIAL[1],
    "audio_eos_token": SPECIAL[2],
}
_WHISPER: Final[Config] = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 80,
    "sampling_rate": SOUND_RATE,
    "hop_length": 160,
    "chunk_length": 30,
    "n_fft": 400,
    "n_samples": 30 * SOUND_RATE,
    "nb_max_frames": 3000,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
}


def write_tiny_qwen2_audio(directory: Path) -> Path:
    """Write a model that hears."""
    template = PARTS.replace("'image'", "'audio'")
    write_model(directory, template=template, tokenizer=train(VOCABULARY - 16))
    # The processor has a template of its own, which only a file replaces.
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    _write(directory, QWEN2_AUDIO, _SOUND_PROCESSOR, _WHISPER)
    return directory


def _write(directory: Path, config: Config, processor: Config, inputs: Config) -> None:
    for name, fields in (
        ("config", config),
        ("processor_config", processor),
        ("preprocessor_config", inputs),
    ):
        (directory / f"{name}.json").write_text(json.dumps(fields), encoding="utf-8")


def write_tiny_model(directory: Path, config: Config = QWEN3) -> Path:
    """Write a model of `config`, to be started with `--load-format dummy`."""
    write_model(directory, tokenizer=train(VOCABULARY - 16))
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory
