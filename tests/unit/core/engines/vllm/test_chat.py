import pytest

from kvmesh.core.engines.vllm.chat import refuses_late_system


@pytest.mark.parametrize(
    ("source", "refuses"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{{ raise_exception('no') }}", True),
        ("{% generation %}{% endgeneration %}", True),
        ("{{ messages[0].content + 3 }}", True),
    ],
)
def test_a_template_is_asked_in_a_bare_environment(source: str, *, refuses: bool) -> None:
    assert refuses_late_system(source) is refuses
