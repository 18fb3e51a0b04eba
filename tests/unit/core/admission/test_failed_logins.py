from kvmesh.core.admission.failed_logins import (
    BURST,
    MOST_CLIENTS,
    REFILL_S,
    FailedLogins,
    client_at,
)


def test_an_address_is_forgiven_some_failures_and_then_waits() -> None:
    logins = FailedLogins()
    for _ in range(int(BURST)):
        assert logins.wait_s("10.0.0.1", 0.0) == 0.0
        logins.failed("10.0.0.1", 0.0)

    assert (logins.wait_s("10.0.0.1", 0.0), logins.wait_s("10.0.0.2", 0.0)) == (REFILL_S, 0.0)
    assert logins.wait_s("10.0.0.1", REFILL_S) == 0.0
    logins.failed("10.0.0.1", REFILL_S)
    assert logins.wait_s("10.0.0.1", REFILL_S) == REFILL_S


def test_a_network_of_ipv6_is_one_client_and_a_mapped_address_is_itself() -> None:
    assert client_at("2001:db8::1%eth0") == client_at("2001:db8::ffff")
    assert client_at("2001:db8::1") != client_at("2001:db8:0:1::1")
    assert client_at("::ffff:10.0.0.1") == client_at("10.0.0.1") == "10.0.0.1"
    assert client_at("unix socket") == "unix socket"


def test_what_a_proxy_tells_sets_its_clients_apart_and_moves_nobody_else() -> None:
    assert client_at("10.0.0.1", "10.2.0.1") != client_at("10.0.0.1", "10.2.0.2")
    assert client_at("10.9.9.9", "10.2.0.1") != client_at("10.0.0.1", "10.2.0.1")
    assert len(client_at("10.0.0.1", "x" * 5000)) < 100


def test_the_table_is_bounded_and_keeps_who_fails_most() -> None:
    logins = FailedLogins()
    for _ in range(int(BURST)):
        logins.failed("10.9.9.9", 0.0)
    for number in range(5 * MOST_CLIENTS):
        logins.failed(f"10.{number // 65536}.{number // 256 % 256}.{number % 256}", 0.0)
        assert len(logins) <= MOST_CLIENTS

    assert logins.wait_s("10.9.9.9", 0.0) > 0.0
