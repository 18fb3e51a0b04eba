import pytest

from kvmesh.core.engines.sglang.chat import sglang_format


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("{{ messages[0].content }}", "string"),
        ("{{ messages[0].content }}{# vision #}", "openai"),
        ("{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}", "openai"),
        ("{% for x in messages %}{% for c in x.content %}{% endfor %}{% endfor %}", "string"),
    ],
)
def test_sglang_also_goes_by_words_and_loop_names(template: str, wanted: str) -> None:
    assert sglang_format(template) == wanted
