"""Which shape the answer to a request has."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Final

from kvmesh_lab.mocker.dialogue_shapes import EmbeddingsShape, MessagesShape, ResponsesShape
from kvmesh_lab.mocker.vllm_requests import GenerationRequest, Kind
from kvmesh_lab.mocker.vllm_responses import ChatShape, CompletionShape, Header, Shape

ID_PREFIXES: Final[Mapping[Kind, str]] = {
    "chat": "chatcmpl-",
    "completion": "cmpl-",
    "responses": "resp_",
    "messages": "msg_",
    "embedding": "embd-",
    "embedding-base64": "embd-",
}
"""What the id of an answer begins with."""


def shape_of(request: GenerationRequest, header: Header, prompts: "Sequence[array[int]]") -> Shape:
    """Return how the answer to `request` is worded; `prompts` are its tokens."""
    if request.kind == "responses":
        return ResponsesShape(header)
    if request.kind == "messages":
        return MessagesShape(header)
    if request.kind in {"embedding", "embedding-base64"}:
        return EmbeddingsShape(header, prompts, as_base64=request.kind == "embedding-base64")
    shape = ChatShape if request.kind == "chat" else CompletionShape
    return shape(
        header,
        with_usage=request.continuous_usage,
        fingerprint_at_end=not request.include_usage,
    )
