import pytest

from kvmesh.core.chat.inference import decode_request
from kvmesh.core.chat.prompt_form import PLAIN, PromptForm
from kvmesh.core.engines.sglang.engine import sglang_form


@pytest.mark.parametrize(
    ("kind", "fields", "form"),
    [
        ("completions", '"echo":true', PLAIN),
        ("completions", '"echo":true,"logprobs":2', PromptForm(computed=True)),
        ("completions", '"echo":true,"logprobs":0', PLAIN),
        ("completions", '"prompt_logprobs":1,"truncate_prompt_tokens":3', PLAIN),
        ("chat", '"echo":true,"logprobs":true', PLAIN),
        ("chat", '"n":2', PromptForm("siblings")),
        ("messages", "", PromptForm("rendering")),
        ("responses", "", PromptForm("rendering")),
    ],
)
def test_a_form_is_what_sglang_makes_of_its_fields(
    kind: str, fields: str, form: PromptForm
) -> None:
    assert sglang_form(decode_request(f"{{{fields}}}".encode()), kind) == form
