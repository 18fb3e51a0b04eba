import re

import pytest

from kvmesh.app.mesh.plane import subjects_for
from kvmesh.errors import ConfigError
from kvmesh.settings.member_name import check_name, name_of, router_name
from kvmesh.settings.roles import NatsSettings


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a*", ">", "x" * 65])
def test_what_is_not_one_word_of_a_subject_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"--bucket {name!r}: use 1 to 64")):
        check_name(name, "--bucket")
    with pytest.raises(ConfigError, match="--bucket"):
        subjects_for(NatsSettings(), name)
    with pytest.raises(ConfigError, match="--namespace"):
        subjects_for(NatsSettings(namespace=name), "chat")


def test_a_host_name_with_dots_makes_a_name_of_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "ip-10-0-0-1.eu.compute.internal")

    name = router_name("")

    assert check_name(name, "it") == name
    assert name.startswith("ip-10-0-0-1-eu-compute-internal-")


def test_a_long_text_keeps_the_end_that_tells_it_apart() -> None:
    assert name_of("x" * 100 + "-42") == "x" * 61 + "-42"


def test_a_given_router_id_is_kept_or_refused() -> None:
    assert router_name("chat-0") == "chat-0"
    with pytest.raises(ConfigError, match="--router-id"):
        router_name("chat.0")
