"""Chat templates in the forms that models come with, each with what is peculiar to it."""

from typing import Final

CHATML: Final = (
    "{% for message in messages %}{{ '<|im_start|>' ~ message['role'] ~ '\n' ~ message['content']"
    " ~ '<|im_end|>' ~ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Bos inside the loop, texts trimmed, today's date, a system message in front whatever comes.
HEADERS: Final = """
{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = strftime_now("%d %b %Y") %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|header|>system<|end|>\n\nToday: " + date_string + "\n\n" + system + "<|eot|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|header|>' + message['role'] + '<|end|>\n\n' }}
        {{- message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {{- message.tool_calls | tojson }}
    {%- else %}
        {{- '<|header|>tool<|end|>' + (message.content | tojson) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|header|>assistant<|end|>\n\n' }}{% endif %}
"""

# Looks for reasoning in answers and for tool results in questions, from the end.
REASONING: Final = r"""
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == 'user' and message.content is string and not (
        message.content.startswith('<result>') and message.content.endswith('</result>')) %}
        {%- set ns.searching = false %}{% set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set before = content.split('</think>')[0].rstrip('\n') %}
            {%- set reasoning = before.split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
            {{- '<|im_start|>assistant\n<think>\n' + reasoning.strip('\n') }}
            {{- '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>assistant\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<result>\n' + content + '\n</result>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""

# Strict turns, the system text in the first question, contents as strings or parts.
TURNS: Final = """
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start>' + role + '\n' + (first_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<stop>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start>model\n' }}{%- endif -%}
"""

# Blanks count, the system text goes into the last question, tools by their own tags.
BRACKETS: Final = """
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{% set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is defined and tools is not none and (message == user_messages[-1]) %}
            {{- "[TOOLS] " + (tools | tojson) + "[/TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported") }}
    {%- endif %}
{%- endfor %}
"""

# A macro, a set block, the system text gathered before anything is printed.
GATHERED: Final = """
{%- macro shown(content) %}
    {{- content.replace('<s>', '') if content is string else '' }}
{%- endmacro %}
{%- set ns = namespace(system='', first=true) %}
{%- for message in messages if message['role'] == 'system' %}
    {%- if ns.first %}{% set ns.system = ns.system + message['content'] %}{% set ns.first = false %}
    {%- else %}{% set ns.system = ns.system ~ '\n\n' ~ message['content'] %}{% endif %}
{%- endfor %}
{{- bos_token }}{{ ns.system }}
{%- for message in messages %}
    {%- set body %}{{ shown(message.content) }}{% endset %}
    {%- if message.role == 'user' %}{{ '<User>' + body }}
    {%- elif message.role == 'assistant' %}
        {{- '<Assistant>' + body.split('</think>')[-1] + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<Assistant>' }}{% endif %}
"""

# No special token at all: one segment.
PROSE: Final = (
    "{% for m in messages %}{% if m.role == 'user' %}USER: {{ m.content }} {% else %}"
    "{{ m.role | upper }}: {{ m.content }}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)

FORMS: Final = {
    "chatml": CHATML,
    "headers": HEADERS,
    "reasoning": REASONING,
    "turns": TURNS,
    "brackets": BRACKETS,
    "gathered": GATHERED,
    "prose": PROSE,
}
