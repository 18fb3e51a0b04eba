"""What a request costs its tenant."""

from typing import Final

from kvmesh._native import Placed
from kvmesh.core.routing.decision import RouteRequest

OUTPUT_WEIGHT: Final = 2
"""What an output token costs a tenant, in uncached prompt tokens: prefill takes many in one step.

Source: Sheng et al., Fairness in Serving Large Language Models (VTC), OSDI 2024.
"""

MOST_RESERVED: Final = 4096
"""Output tokens charged in advance at most; the others are charged when the answer has ended."""


def cost_of(request: RouteRequest, placed: Placed) -> int:
    """Return what a request costs its tenant: uncached prompt tokens where it goes, and output.

    What another worker prefills counts as far as the worker that decodes lacks it.
    """
    record = placed.record
    uncached = record.uncached_tokens
    if request.prefilled:
        uncached = max(0, record.prompt_tokens - record.overlap_blocks * record.block_size)
    return price(uncached, request.expected_output_tokens)


def price(uncached_tokens: int, expected_output_tokens: int) -> int:
    """Return the cost of so many tokens, those of the answer by their expected number."""
    return max(1, uncached_tokens + OUTPUT_WEIGHT * reserved(expected_output_tokens))


def reserved(expected_output_tokens: int) -> int:
    """Return the output tokens that are charged in advance."""
    return min(max(0, expected_output_tokens), MOST_RESERVED)
