"""One ended request, as a test tells of it."""

from kvmesh.core.insight.flow import Flow


def ended(error: str = "", **sums: float) -> Flow:
    """Return the sums of one request."""
    return Flow(requests=1.0, errors={error: 1.0} if error else {}, **sums)


WHOLE = ended(
    prompt_tokens=100,
    output_tokens=11,
    ttft_ms=50.0,
    first_tokens=1,
    decode_ms=400.0,
    decode_tokens=10,
)
