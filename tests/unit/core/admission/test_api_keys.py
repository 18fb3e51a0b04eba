import pytest

from kvmesh.core.admission.access import DEFAULT_ROLES
from kvmesh.core.admission.api_keys import ApiKey, KeyRing, digest_of, parse_file, parse_keys
from kvmesh.core.admission.usage_limits import Limits
from kvmesh.errors import ConfigError, RequestError

ANN, BEN = digest_of("kvm-ann"), digest_of("kvm-ben")
FILE = f"""
[keys.ann]
sha256 = "{ANN.upper()}"
tenant = "kitchen"
[keys.ben]
sha256 = "{BEN}"
requests_per_minute = 60
"""


def ring() -> KeyRing:
    return KeyRing(parse_keys(FILE, "file"))


def status(ring: KeyRing, key: str) -> int:
    try:
        ring.admit("/v1/models", key)
    except RequestError as error:
        return error.status
    return 200


def test_a_known_key_tells_its_tenant() -> None:
    ann = ring().admit("/v1/models", "kvm-ann")
    ben = ring().admit("/v1/models", "kvm-ben")

    assert ann is not None
    assert ben is not None
    assert (ann.tenant, ben.tenant) == ("kitchen", "ben")


@pytest.mark.parametrize(("key", "word"), [("", "send an API key"), ("kvm-x", "is not known")])
def test_without_a_known_key_nothing_is_served(key: str, word: str) -> None:
    keys = ring()

    with pytest.raises(RequestError, match=word) as refused:
        keys.admit("/v1/models", key)

    assert refused.value.status == 401


def test_probes_need_no_key() -> None:
    assert ring().admit("/health", "") is None
    assert ring().admit("/ready", "") is None


def test_nobody_comes_in_without_a_key_though_the_empty_text_has_a_digest() -> None:
    assert status(KeyRing(parse_keys(f'[keys.a]\nsha256 = "{digest_of("")}"', "file")), "") == 401


def test_other_keys_count_at_once() -> None:
    keys = ring()
    keys.replace(parse_keys(FILE.replace(ANN.upper(), digest_of("kvm-new")), "file"))

    assert [status(keys, key) for key in ("kvm-ann", "kvm-new", "kvm-ben")] == [401, 200, 200]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("x", "file: "),
        ("", "file: "),
        ("[keys.a]\nsha256 = 5", "sha256"),
        ("[keys.a]\nsha256 = 'abc'", "keys.a: sha256 is not 64"),
        (f"[keys.a]\nsha256 = '{ANN}'\nrequests_per_minute = -1", "requests_per_minute"),
        (f"[keys.a]\nsha256 = '{ANN}'\nrequests_per_minute = nan", "requests_per_minute"),
        (f"[keys.a]\nsha256 = '{ANN}'\nrequests_per_minute = inf", "requests_per_minute"),
        (f"[keys.a]\nsha256 = '{ANN}'\nrequests_per_minute = 1e308", "requests_per_minute"),
        (f"[keys.a]\nsha256 = '{ANN}'\ntenant = \"a\\r\\nx: y\"", r"keys.'a': .* is no name"),
        (f"[keys.{'a' * 600}]\nsha256 = '{ANN}'", "is no name"),
        (f"[keys.a]\nsha256 = '{ANN}'\nkey = 'oops'", "key"),
        (f"[keys.a]\nsha256 = '{ANN}'\n[keys.b]\nsha256 = '{ANN}'", "another name has the same"),
    ],
)
def test_a_file_that_is_none_is_told_where(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        parse_keys(text, "file")


def test_keys_hold_no_secret() -> None:
    (key,) = parse_keys(f"[keys.a]\nsha256 = '{ANN}'", "file").values()

    assert key == ApiKey(ANN, "a", DEFAULT_ROLES, name="a")
    assert "kvm-ann" not in repr(key)


@pytest.mark.parametrize(
    ("fields", "roles"),
    [
        ("", ("infer", "view")),
        ("proxy = true", ("infer", "view", "operate")),
        ("roles = ['infer']", ("infer",)),
        ("roles = ['view', 'infer']\nproxy = true", ("view", "infer")),
    ],
)
def test_a_key_has_the_roles_of_its_file_else_those_from_before_there_were_any(
    fields: str, roles: tuple[str, ...]
) -> None:
    (key,) = parse_keys(f"[keys.a]\nsha256 = '{ANN}'\n{fields}", "file").values()

    assert key.roles == roles


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("roles = []", "roles is empty"),
        ("roles = ['admin']", "admin"),
        ("roles = 'infer'", "roles"),
        ("tenant = 'a\\r\\nx-admin: 1'", "is no name"),
        ("tenant = ' ann'", "no blank at either end"),
        (f"tenant = '{'a' * 513}'", "at most 512"),
        (f"tenant = '{'é' * 257}'", "at most 512 bytes"),
        ("tenant = 'Ångström'", "cannot stand in a header"),
        ("residency = ['a b']", "residency 'a b' is no site"),
        ("residency = ['eu,us']", "is no site"),
    ],
)
def test_roles_and_tenants_that_cannot_be_are_told_where(fields: str, words: str) -> None:
    fields = fields.replace("'a\\r", '"a\\r').replace("x-admin: 1'", 'x-admin: 1"')
    with pytest.raises(ConfigError, match=words):
        parse_keys(f"[keys.a]\nsha256 = '{ANN}'\n{fields}", "file")


def test_a_key_is_found_by_its_digest() -> None:
    keys = KeyRing(parse_keys(f"[keys.a]\nsha256 = '{ANN}'\nrequests_per_minute = 2", "file"))
    (digest,) = keys.digests()
    key = keys.get(digest)

    assert key is not None
    assert (digest, key.tenant, keys.get("0" * 64)) == (ANN.lower(), "a", None)


def test_limits_are_of_keys_and_tenants_by_the_names_that_requests_bear() -> None:
    text = f"""
    [keys."ann é"]
    sha256 = "{ANN}"
    tokens_per_minute = 6000
    [keys.ben]
    sha256 = "{BEN}"
    [tenants.kitchen]
    requests_per_minute = 3
    tokens_per_day = 1e6
    [tenants.cellar]
    """

    assert parse_file(text, "file").limits == {
        "key:ann ?": Limits(tokens_per_minute=6000.0),
        "tenant:kitchen": Limits(requests_per_minute=3.0, tokens_per_day=1e6),
    }


@pytest.mark.parametrize("limited", [(), (0,), (1,), (0, 1)])
def test_names_that_requests_bear_alike_have_no_limits(limited: tuple[int, ...]) -> None:
    """Else the one without limits, or with other ones, would lift those of the other."""
    parts = [
        f"[keys.'{name}']\nsha256 = '{digest}'\n" + "tokens_per_day = 5\n" * (number in limited)
        for number, (name, digest) in enumerate((("Jürgen", ANN), ("Jörgen", BEN)))
    ]

    if limited:
        with pytest.raises(ConfigError, match=r"two keys bear the name 'J.rgen'"):
            parse_file("".join(parts), "file")
    else:
        assert parse_file("".join(parts), "file").limits == {}


@pytest.mark.parametrize(
    "fields", ["tokens = 5", "tokens_per_day = -1", "tokens_per_minute = 1e25", "sha256 = 'a'"]
)
def test_limits_of_tenants_that_cannot_be_are_told(fields: str) -> None:
    with pytest.raises(ConfigError, match="tenants"):
        parse_file(f"[keys.a]\nsha256 = '{ANN}'\n[tenants.b]\n{fields}", "file")


def test_a_key_says_at_which_sites_its_data_stays() -> None:
    (key,) = parse_file(f"[keys.a]\nsha256 = '{ANN}'\nresidency = ['eu']", "file").keys.values()
    other = ring().get(ANN)

    assert key.residency == ("eu",)
    assert other is not None
    assert other.residency == ()
