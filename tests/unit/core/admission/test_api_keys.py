import pytest

from kvmesh.core.admission.access import DEFAULT_ROLES
from kvmesh.core.admission.api_keys import ApiKey, KeyRing, digest_of, parse_keys
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


def status(ring: KeyRing, key: str, now: float = 0.0) -> int:
    try:
        ring.admit("/v1/models", key, now)
    except RequestError as error:
        return error.status
    return 200


def test_a_known_key_tells_its_tenant() -> None:
    ann = ring().admit("/v1/models", "kvm-ann", 0.0)
    ben = ring().admit("/v1/models", "kvm-ben", 0.0)

    assert ann is not None
    assert ben is not None
    assert (ann.tenant, ben.tenant) == ("kitchen", "ben")


@pytest.mark.parametrize(("key", "word"), [("", "send an API key"), ("kvm-x", "is not known")])
def test_without_a_known_key_nothing_is_served(key: str, word: str) -> None:
    keys = ring()

    with pytest.raises(RequestError, match=word) as refused:
        keys.admit("/v1/models", key, 0.0)

    assert (refused.value.status, keys.refused) == (401, 1)


def test_probes_need_no_key() -> None:
    assert ring().admit("/health", "", 0.0) is None
    assert ring().admit("/ready", "", 0.0) is None


def test_a_rate_is_a_bucket_that_fills_evenly() -> None:
    keys = ring()

    assert [status(keys, "kvm-ben") for _ in range(61)] == [200] * 60 + [429]
    assert (status(keys, "kvm-ben", 0.5), status(keys, "kvm-ben", 1.6)) == (429, 200)
    assert status(keys, "kvm-ben", 1.7) == 429
    assert [status(keys, "kvm-ben", 1000.0) for _ in range(61)] == [200] * 60 + [429]
    assert status(keys, "kvm-ann", 1000.0) == 200


def test_a_rate_of_one_a_minute_is_one_and_each_refusal_counts() -> None:
    text = f'[keys.a]\nsha256 = "{ANN.upper()}"\nrequests_per_minute = 1'
    keys = KeyRing(parse_keys(text, "file"))

    assert [status(keys, "kvm-ann", now) for now in (0.0, 0.0, 59.9, 60.0)] == [200, 429, 429, 200]
    assert (status(keys, "kvm-x", 60.0), keys.refused) == (401, 3)
    with pytest.raises(RequestError, match="tenant 'a' has spent its 1 requests a minute"):
        keys.admit("/v1/models", "kvm-ann", 60.0)


def test_nobody_comes_in_without_a_key_though_the_empty_text_has_a_digest() -> None:
    assert status(KeyRing(parse_keys(f'[keys.a]\nsha256 = "{digest_of("")}"', "file")), "") == 401


def test_other_keys_count_at_once_and_spent_ones_stay_spent() -> None:
    keys = ring()
    for _ in range(60):
        status(keys, "kvm-ben")

    keys.replace(parse_keys(FILE.replace(ANN.upper(), digest_of("kvm-new")), "file"))

    assert [status(keys, key) for key in ("kvm-ann", "kvm-new", "kvm-ben")] == [401, 200, 429]


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

    assert key == ApiKey(ANN, "a", DEFAULT_ROLES)
    assert "kvm-ann" not in repr(key)


@pytest.mark.parametrize(("key", "word"), [("", "send an API key"), ("kvm-x", "is not known")])
def test_a_check_ahead_of_a_body_refuses_alike_and_spends_nothing(key: str, word: str) -> None:
    keys = ring()
    with pytest.raises(RequestError, match=word) as caught:
        keys.check("/v1/models", key)
    assert caught.value.status == 401
    keys.check("/health", key)

    for _ in range(100):
        keys.check("/v1/models", "kvm-ben")

    assert (keys.refused, status(keys, "kvm-ben")) == (0, 200)


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


def test_a_key_is_found_by_its_digest_and_spends_as_one_that_is_shown() -> None:
    keys = KeyRing(parse_keys(f"[keys.a]\nsha256 = '{ANN}'\nrequests_per_minute = 2", "file"))
    (digest,) = keys.digests()
    key = keys.get(digest)

    assert key is not None
    assert (digest, key.tenant, keys.get("0" * 64)) == (ANN.lower(), "a", None)
    keys.spend(key, 0.0)
    assert [status(keys, "kvm-ann", 0.0) for _ in range(2)] == [200, 429]


def test_a_key_says_at_which_sites_its_data_stays() -> None:
    (key,) = parse_keys(f"[keys.a]\nsha256 = '{ANN}'\nresidency = ['eu']", "file").values()

    assert key.residency == ("eu",)
    assert ring().get(ANN) == ApiKey(ANN, "kitchen", DEFAULT_ROLES)
