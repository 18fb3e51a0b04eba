"""What SGLang makes of a prompt's form.

Source: SGLang 0.5.23 `entrypoints/openai/serving_completions.py`, `managers/schedule_batch.py`.
"""

from kvmesh.core.chat.inference import Parsed
from kvmesh.core.chat.prompt_form import (
    PLAIN,
    PromptForm,
    common_form,
    is_set,
    whole_number,
)


def sglang_form(parsed: Parsed, kind: str) -> PromptForm:
    """Return the form: a completion that is echoed with logprobs is computed whole.

    It takes no `truncate_prompt_tokens`, no `prompt_logprobs` and no `add_special_tokens`.
    """
    if (common := common_form(parsed)) is not None:
        return common
    if kind in {"messages", "responses"}:
        return PromptForm("rendering")
    if kind == "completions" and is_set(parsed.echo) and (whole_number(parsed.logprobs) or 0) > 0:
        return PromptForm(computed=True)
    return PLAIN
