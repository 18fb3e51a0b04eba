import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.members.url_rules import UrlRules, is_remote, parse_url_rules
from kvmesh.errors import ConfigError

DEFAULT = UrlRules()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://169.254.169.254", "link-local"),
        ("http://169.254.0.1:8000", "link-local"),
        ("http://[fe80::1]:8000", "link-local"),
        ("http://[fe80::1%25eth0]:8000", "link-local"),
        ("http://[::ffff:169.254.169.254]", "link-local"),
        ("http://[64:ff9b::a9fe:a9fe]", "link-local"),
        ("http://[2002:a9fe:a9fe::]", "link-local"),
        ("http://100.100.100.200", "metadata service"),
        ("http://[fd00:ec2::254]", "metadata service"),
        ("http://metadata.google.internal", "metadata service"),
        ("http://METADATA.google.internal.:80", "metadata service"),
        ("http://2852039166", "hides it"),
        ("http://0xa9fea9fe/", "hides it"),
        ("http://169.254.43518", "hides it"),
        ("http://0251.0376.0251.0376", "hides it"),
        ("http://0.0.0.0:8000", "no address of one host"),
        ("http://0.0.0.1:8000", "no address of one host"),
        ("http://[::]:8000", "no address of one host"),
        ("http://[ff02::1]:8000", "no address of one host"),
        ("http://224.0.0.1:8000", "no address of one host"),
        ("http://255.255.255.255", "no address of one host"),
        ("http://engine:0", "port 0"),
        ("http://user:secret@engine:8000", "user name"),
        ("http://@engine:8000", "user name"),
        ("http://engine:8000/admin", "more than"),
        ("http://engine:8000?x=1", "more than"),
        ("http://engine:8000#x", "more than"),
        ("file:///etc/passwd", "not of the form"),
        ("gopher://engine:70", "not of the form"),
        ("engine:8000", "not of the form"),
        ("http://.", "not of the form"),
        ("", "not of the form"),
        ("http://eng\nine:8000", "characters"),
        ("http://engine :8000", "characters"),
        ("http://ⓔngine:8000", "characters"),
        ("http://engine:99999", "no URL"),
        ("http://[::1", "no URL"),
    ],
)
def test_what_is_no_engine_is_refused_with_the_reason(url: str, why: str) -> None:
    assert why in DEFAULT.why_not(url)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.9.9.9",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "localhost",
        "a.localhost",
        "LocalHost.",
    ],
)
def test_loopback_is_of_others_where_members_meet_on_another_machine(host: str) -> None:
    url = f"http://{host}:8222"
    apart = parse_url_rules((), apart=True)

    assert DEFAULT.why_not(url) == ""
    assert "loopback" in apart.why_not(url)
    assert "loopback" in apart.why_not_peer("engine.svc", 8222, "127.0.0.1")
    assert apart.why_not("http://10.0.0.1:8000") == ""
    assert parse_url_rules((), [url], apart=True).why_not(url) == ""
    assert parse_url_rules(("127.0.0.0/8:8222", "::1", "*localhost"), apart=True).why_not(url) == ""
    assert parse_url_rules(("any",), apart=True).why_not(url) == ""


@pytest.mark.parametrize(
    ("servers", "elsewhere"),
    [
        ("", False),
        ("nats://127.0.0.1:4222", False),
        ("localhost:4222, tls://[::1]:4222", False),
        ("nats://user:pw@127.0.0.1:4222", False),
        ("nats://nats:4222", True),
        ("nats://127.0.0.1:4222,nats://10.0.0.1:4222", True),
        ("10.0.0.1", True),
        ("nats://[", True),
    ],
)
def test_who_meets_on_loopback_is_on_one_machine(servers: str, elsewhere: bool) -> None:
    assert is_remote(servers) is elsewhere


def test_a_list_admits_what_is_on_it_and_nothing_else() -> None:
    rules = parse_url_rules(
        ["10.0.0.0/8:8000-8010", "*.engines.svc", "Gateway:443", "[fd00::/8]:8000"]
    )

    for url in (
        *("http://10.9.8.7:8000", "http://10.9.8.7:8010", "http://a.engines.svc:1"),
        *("https://gateway", "http://[fd00::1]:8000"),
    ):
        assert rules.why_not(url) == "", url
    for url in (
        *("http://10.9.8.7:8011", "http://11.0.0.1:8000", "http://gateway:80"),
        *("http://[fd00::1]:8001", "http://127.0.0.1:8000"),
    ):
        assert "not listed" in rules.why_not(url), url


def test_a_name_is_judged_by_its_address_where_networks_are_listed() -> None:
    rules = parse_url_rules(["10.0.0.0/8:8000"])

    assert rules.why_not("http://engine:8000") == ""
    assert "not listed" in rules.why_not("http://engine:9000")
    assert rules.why_not_peer("engine", 8000, "10.1.1.1") == ""
    assert "not listed" in rules.why_not_peer("engine", 8000, "11.1.1.1")
    assert "not listed" in parse_url_rules(["*.svc"]).why_not("http://engine:8000")


def test_a_listed_name_may_have_any_address_but_a_special_one() -> None:
    rules = parse_url_rules(["engine"])

    assert rules.why_not_peer("engine.", 8000, "11.1.1.1") == ""
    assert "link-local" in rules.why_not_peer("engine", 8000, "169.254.169.254")
    assert "link-local" in DEFAULT.why_not_peer("engine", 8000, "fe80::1%eth0")
    assert DEFAULT.why_not_peer("engine", 8000, "11.1.1.1") == ""


def test_special_addresses_are_admitted_when_listed_and_all_are_by_any() -> None:
    listed = parse_url_rules(["169.254.0.0/16", "metadata.google.internal"])
    anything = parse_url_rules(["any"])

    assert listed.why_not("http://169.254.1.1:8000") == ""
    assert listed.why_not("http://metadata.google.internal") == ""
    assert anything.why_not("http://169.254.169.254") == ""
    assert anything.why_not("http://metadata.google.internal") == ""
    assert "user name" in anything.why_not("http://u@engine")


def test_hosts_of_our_own_configuration_are_always_admitted() -> None:
    rules = parse_url_rules(["10.0.0.0/8"], ["http://169.254.1.1:8000", "http://[::1", "x"])

    assert rules.own == {"169.254.1.1"}
    assert rules.why_not("http://169.254.1.1:9") == ""
    assert rules.why_not_peer("169.254.1.1", 9, "169.254.1.1") == ""
    assert rules.why_not("http://127.0.0.1:9") != ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("10.0.0.0/99", "--upstream-allow '10.0.0.0/99': .*write a CIDR"),
        ("10.0.0.1/8", "host bits"),
        ("1.2.3", "write a CIDR"),
        ("engine/8", "write a CIDR"),
        ("en gine", "write a CIDR"),
        ("http://engine", "is no port"),
        ("engine:http", "'http' is no port"),
        ("engine:0", "1 to 65535"),
        ("engine:9-8", "the lower one first"),
        ("[fd00::/8", r"write \[CIDR\]:PORT"),
        ("[fd00::/8]8000", r"write \[CIDR\]:PORT"),
        ("", "write a CIDR"),
    ],
)
def test_an_entry_that_means_nothing_is_a_clear_error(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_url_rules([text])


@given(st.text(max_size=60))
def test_no_text_makes_the_judge_fail(text: str) -> None:
    for url in (text, f"http://{text}", f"http://{text}:8000", f"http://[{text}]"):
        assert isinstance(DEFAULT.why_not(url), str)


@given(st.ip_addresses(v=4, network="169.254.0.0/16"), st.integers(1, 65535))
def test_no_spelling_of_a_link_local_address_is_admitted(address: object, port: int) -> None:
    number = int(address)  # type: ignore[call-overload]
    hidden = f"::ffff:{number >> 16:x}:{number & 0xFFFF:x}"

    for host in (str(address), f"[{hidden}]", str(number), hex(number)):
        assert DEFAULT.why_not(f"http://{host}:{port}"), host
