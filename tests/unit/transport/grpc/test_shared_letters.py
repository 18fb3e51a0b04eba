"""What reading a gateway's messages must leave alone."""

import string

from kvmesh.transport.grpc.extproc_messages import RequestHeaders, decode


def test_names_of_one_letter_are_lowered_and_the_letters_of_this_process_are_not() -> None:
    for letter in string.ascii_uppercase:
        name = letter.encode()
        header = b"\x0a\x01" + name + b"\x1a\x01v"
        headers = b"\x0a" + bytes([len(header)]) + header
        head = b"\x0a" + bytes([len(headers)]) + headers

        received = decode(b"\x12" + bytes([len(head)]) + head)

        assert isinstance(received, RequestHeaders)
        assert received.headers == [(letter.lower().encode(), b"v")]
        assert [ord(letter)] == [*bytes([ord(letter)])]
