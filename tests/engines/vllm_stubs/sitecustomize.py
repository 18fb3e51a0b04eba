"""Stands for what vLLM's LLaVA imports and never calls for CLIP: it needs torchvision, whose
published wheels need CUDA.
"""

import sys
from types import ModuleType


def stand_in(name: str, *functions: str) -> None:
    """Put a module into place that has these names, and nothing behind them."""
    module = ModuleType(name)
    for function in functions:
        setattr(module, function, None)
    sys.modules[name] = module


stand_in(
    "transformers.models.pixtral.image_processing_pixtral",
    "_num_image_tokens",
    "get_resize_output_image_size",
)
