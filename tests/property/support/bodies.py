"""Request bodies as text, as clients write them and as they never should: for readers of bodies."""

import json

from hypothesis import strategies as st

FIELDS = [
    *("model", "stream", "messages", "prompt", "input", "input_ids", "system", "instructions"),
    *("tools", "documents", "tool_choice", "chat_template_kwargs", "reasoning_effort", "n"),
    *("add_generation_prompt", "continue_final_message", "max_tokens", "max_completion_tokens"),
    *("max_output_tokens", "user", "priority", "cache_salt", "lora_path", "kvmesh", "seed"),
    *("prompt_cache_key", "prompt_cache_retention", "nvext", "extra_key"),
]
MEMBERS = ["role", "content", "name", "tool_calls", "tool_call_id", "refusal", "ts"]
ROLES = ["system", "developer", "user", "assistant", "tool", "critic", ""]
SHORT = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "/": "\\/"}
NUMBERS = [
    *("0", "-0", "1", "7", "-1", "00", "01", "1.0", "0.5", "-0.0", "1.50", "100.25", "0.0001"),
    *("0.00001", "1e2", "1E+2", "1e999", "2147483647", "2147483648", "123456789012345"),
    *("1234567890123456", "0.123456789012345", "18446744073709551616", "1.", ".5", "+1", "--1"),
    *("1e", "NaN", "-Infinity", "99999999999999999999", "32768", "100000", "9" * 5000),
]
blanks = st.sampled_from(["", "", "", " ", "\n\t", "\r\n  ", "\v", "\ufeff"]) | st.just("")
characters = st.sampled_from([*'aé€😀/"\\\n\t\x00\x1f\x7f \u2028', "\ud83d", "\udc00"])
texts = st.text(st.characters(codec="utf-8"), max_size=20) | st.text('ab /"\\\n\té😀', max_size=60)


@st.composite
def strings(draw: st.DrawFn, of: st.SearchStrategy[str] = texts, wild: bool = True) -> str:
    """Return a JSON string of a text, each character written in one of the ways there are."""
    out = []
    for character in draw(of):
        how = draw(st.integers(0, 9))
        units = character.encode("utf-16-be", "surrogatepass").hex()
        escape = "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
        if how == 0:
            out.append(escape)
        elif how == 1:
            out.append(escape.upper().replace("U", "u"))
        elif how < 4 and character in SHORT:
            out.append(SHORT[character])
        elif character in '"\\':
            out.append("\\" + character)
        else:
            out.append(character if character >= " " else escape)
    if wild and draw(st.integers(0, 30)) == 0:
        out.insert(
            draw(st.integers(0, len(out))),
            draw(st.sampled_from(["\\ud83d", "\\udc00x", "\\x", "\n", "\\u12", "\ud800", "\\"])),
        )
    return '"' + "".join(out) + '"'


def _joined(draw: st.DrawFn, opening: str, parts: list[str], closing: str) -> str:
    out = opening
    for at, part in enumerate(parts):
        out += (draw(blanks) + "," if at else "") + draw(blanks) + part
    return out + draw(blanks) + closing


@st.composite
def objects(draw: st.DrawFn, pairs: st.SearchStrategy[tuple[str, str]], most: int = 6) -> str:
    """Return a JSON object of members (both JSON texts), keys perhaps twice."""
    members = draw(st.lists(pairs, max_size=most))
    return _joined(draw, "{", [f"{key}{draw(blanks)}:{value}" for key, value in members], "}")


@st.composite
def lists(draw: st.DrawFn, of: st.SearchStrategy[str], least: int = 0, most: int = 4) -> str:
    """Return a JSON list of JSON texts."""
    return _joined(draw, "[", draw(st.lists(of, min_size=least, max_size=most)), "]")


keys = strings(st.text("abfunctio", max_size=3), wild=False)
numbers = st.sampled_from(NUMBERS) | st.integers(-9, 10**16).map(str) | st.floats().map(str)
scalars = st.sampled_from(["true", "false", "null", "nul", "True"]) | numbers | strings()
values = st.recursive(
    scalars,
    lambda inner: lists(inner) | objects(st.tuples(keys, inner)),
    max_leaves=8,
)
nested = st.integers(1, 90).map(lambda deep: "[" * deep + "]" * deep)
fine = strings(wild=False)


def member(name: str) -> st.SearchStrategy[str]:
    return st.just(json.dumps(name))


def named(name: str, value: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, str]]:
    return st.tuples(member(name), value)


part_kinds = st.sampled_from(["text", "input_text", "output_text", "refusal", "thinking", "image"])
parts = fine | objects(
    st.one_of(
        named("type", part_kinds.map(json.dumps) | st.sampled_from(["null", "1"])),
        named("text", fine),
        named("text", fine),
        named("refusal", fine),
        named("thinking", fine | values),
        st.tuples(keys, values),
    ),
    most=4,
)
functions = objects(
    st.one_of(
        named("type", st.just('"function"')),
        named("id", fine),
        named("function", objects(st.tuples(keys, values)) | st.sampled_from(["null", "1", '""'])),
        st.tuples(keys, values),
    )
)
roles = st.sampled_from(ROLES).map(json.dumps) | strings(st.sampled_from(ROLES))
usual = st.tuples(roles, fine).map(lambda pair: f'{{"role": {pair[0]},"content":{pair[1]}}}')
odd = objects(
    st.one_of(
        named("role", roles | values),
        named("content", fine),
        named("content", lists(parts) | values),
        named("name", strings() | st.sampled_from(["null", '""', "[]", "1", "{}", "false"])),
        named("tool_calls", lists(functions) | st.sampled_from(["null", "[ ]", "1"])),
        named("tool_call_id", fine | values),
        st.tuples(st.sampled_from(MEMBERS).map(json.dumps) | keys, values),
        st.tuples(strings(st.sampled_from(MEMBERS)), values),
    )
)
messages = lists(usual | usual | odd, least=1)
whole = st.sampled_from(["null", "0", "1", "2", "128", "-1", "4096", "40000", "2147483648"])
flags = st.sampled_from(["true", "false", "null", "1"])
FITTING: dict[str, st.SearchStrategy[str]] = {
    "model": fine | st.integers(500, 520).map(lambda size: '"' + "é" * size + '"'),
    "stream": flags,
    "messages": messages,
    "prompt": fine | lists(fine) | lists(whole),
    "n": whole,
    "max_tokens": whole,
    "max_completion_tokens": whole,
    "max_output_tokens": whole,
    "priority": whole,
    "add_generation_prompt": flags,
    "continue_final_message": flags,
    "tools": lists(functions) | st.just("null"),
    "documents": lists(functions) | st.just("null"),
    "lora_path": fine | lists(fine),
    "kvmesh": st.sampled_from(["null", "{}", '{"priority":1}']),
    "chat_template_kwargs": objects(st.tuples(keys, values)),
}


@st.composite
def fields(draw: st.DrawFn) -> tuple[str, str]:
    """Return a field of a body and its value, mostly one that fits."""
    name = draw(st.sampled_from(FIELDS))
    fitting = FITTING.get(name, fine)
    value = draw(fitting | fitting | fitting | values | nested | st.just("null"))
    plain = draw(st.integers(0, 30))
    key = json.dumps(name) if plain else draw(strings(st.just(name), wild=False))
    return key, value


@st.composite
def chats(draw: st.DrawFn) -> bytes:
    """Return the body of a chat, mostly well formed, with any other fields."""
    others = [f"{key}:{value}" for key, value in draw(st.lists(fields(), max_size=4))]
    others.insert(draw(st.integers(0, len(others))), f'"messages":{draw(messages)}')
    body = draw(blanks) + _joined(draw, "{", others, "}") + draw(blanks)
    return body.encode("utf-8", "surrogatepass")


anything = objects(fields()).map(lambda text: text.encode("utf-8", "surrogatepass"))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a body with a byte changed, left out or put in, or cut short."""
    body = bytearray(draw(chats() | anything))
    at = draw(st.integers(0, len(body) - 1))
    byte = draw(st.integers(0, 255) | st.sampled_from(b'"\\{}[],:0e.u\x00\xc3\xed\xf4'))
    how = draw(st.sampled_from(["change", "drop", "insert", "cut"]))
    if how == "change":
        body[at] = byte
    elif how == "drop":
        del body[at]
    elif how == "insert":
        body.insert(at, byte)
    else:
        del body[at:]
    return bytes(body)
