import pytest

from kvmesh.core.chat.inference import decode_request
from kvmesh.core.chat.prompt_form import PLAIN, PromptForm
from kvmesh.core.engines.vllm.forms import vllm_form

COMPUTED = PromptForm(computed=True)


@pytest.mark.parametrize(
    ("kind", "fields", "form"),
    [
        ("completions", "", PLAIN),
        ("completions", '"logprobs":3,"echo":false', PLAIN),
        ("completions", '"echo":true', PLAIN),
        ("completions", '"echo":true,"logprobs":0', COMPUTED),
        ("completions", '"prompt_logprobs":0', COMPUTED),
        ("chat", '"prompt_logprobs":2', COMPUTED),
        ("chat", '"echo":true', COMPUTED),
        ("chat", '"add_special_tokens":true', PromptForm(special_tokens=True)),
        ("completions", '"add_special_tokens":false', PromptForm(special_tokens=False)),
        ("completions", '"truncate_prompt_tokens":5', PromptForm(keep=5)),
        ("completions", '"truncate_prompt_tokens":-1', PLAIN),
        ("completions", '"truncate_prompt_tokens":"x"', PromptForm("truncated")),
        (
            "chat",
            '"truncate_prompt_tokens":5,"truncation_side":"right"',
            PromptForm(keep=5, keeps_end=False, exactly=True),
        ),
        (
            "embeddings",
            '"truncate_prompt_tokens":5,"truncation_side":"left","echo":true',
            PromptForm(keep=5, exactly=True),
        ),
        ("embeddings", '"truncate_prompt_tokens":5', PromptForm(keep=5, keeps_end=False)),
        ("messages", '"echo":true,"prompt_logprobs":1', PLAIN),
        ("responses", '"truncate_prompt_tokens":5', PLAIN),
        ("responses", '"previous_response_id":"r"', PromptForm("stored")),
        ("chat", '"n":3', PromptForm("siblings")),
    ],
)
def test_a_form_is_what_vllm_makes_of_its_fields(kind: str, fields: str, form: PromptForm) -> None:
    assert vllm_form(decode_request(f"{{{fields}}}".encode()), kind) == form
