from kvmesh.app.picker.envoy_options import Address, GatewayOptions, unharmed


def test_an_address_is_written_as_the_protocol_wants_it() -> None:
    ends = Address("10.0.0.1", 8000), Address("::1", 8000)

    assert [str(one) for one in ends] == ["10.0.0.1:8000", "[::1]:8000"]


def test_without_harm_means_that_envoy_keeps_copies_and_goes_on() -> None:
    options = unharmed(GatewayOptions(pickers=(Address("10.0.0.1", 1),)))

    assert (options.request_body, options.response_body) == ("BUFFERED", "STREAMED")
    assert options.fail_open
