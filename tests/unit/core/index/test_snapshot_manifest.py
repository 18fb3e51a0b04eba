import msgspec
import pytest

from kvmesh.core.index.snapshot_manifest import (
    GENERATIONS,
    Manifest,
    SnapshotGeneration,
    decode_manifest,
    encode_manifest,
    refuse_newer,
)
from kvmesh.errors import CodecError, NewerError
from kvmesh.formats import MAX_FORMAT, FormatRange


def generation(sequence: int, *, fence: int = 1, created: str = "a") -> SnapshotGeneration:
    return SnapshotGeneration(
        name=f"idx-{created}-{sequence}-{fence}",
        created=created,
        sequence=sequence,
        size=10,
        sha256="00",
        fence=fence,
    )


def kept(*sequences: int) -> Manifest:
    manifest = Manifest()
    for sequence in sequences:
        newer = manifest.with_newest(generation(sequence))
        assert newer is not None
        manifest = newer
    return manifest


def test_the_newest_and_two_before_it_are_kept() -> None:
    manifest = kept(10, 20, 30, 40)

    assert [one.sequence for one in manifest.generations] == [40, 30, 20]
    assert len(manifest.names()) == GENERATIONS
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_only_what_the_second_newest_holds_may_be_purged() -> None:
    assert (kept(10).purge_limit("a"), kept(10, 20, 30).purge_limit("a")) == (0, 20)
    assert kept(10, 20, 30).purge_limit("another stream") == 0


def test_a_newer_kvmeshs_manifest_is_told_from_garbage() -> None:
    with pytest.raises(NewerError, match="schema 2, this build reads 1"):
        decode_manifest(b'{"schema":2,"generations":{"of":"another shape"}}')

    for garbage in (b"{", b"[]", b'{"schema":"two"}', b'{"schema":0}', b'{"generations":7}'):
        with pytest.raises(CodecError) as caught:
            decode_manifest(garbage)
        assert not isinstance(caught.value, NewerError)


def test_a_newer_manifest_tells_its_writer_as_far_as_that_can_be_read() -> None:
    reported = b'{"schema":3,"generations":[{"version":"9.1","shape":0}]}'
    empty = b'{"schema":3,"generations":[]}'
    huge = b'{"schema":100000000000000000}'

    errors: list[NewerError] = []
    for data in (reported, empty, huge):
        with pytest.raises(NewerError) as caught:
            decode_manifest(data)
        errors.append(caught.value)

    assert [(one.number, one.version) for one in errors] == [(3, "9.1"), (3, ""), (MAX_FORMAT, "")]


def test_a_manifest_of_each_format_that_is_read_is_written_and_read() -> None:
    manifest = Manifest().with_newest(generation(10), 2)
    assert manifest is not None

    assert decode_manifest(encode_manifest(manifest), FormatRange(1, 2)) == manifest
    with pytest.raises(CodecError, match="schema 1, this build reads 2 to 3"):
        decode_manifest(encode_manifest(kept(10)), FormatRange(2, 3))


def test_a_newest_snapshot_of_a_newer_format_is_refused_and_older_ones_do_not_matter() -> None:
    newer = msgspec.structs.replace(generation(20), encoding=3, version="9.1")

    with pytest.raises(NewerError, match="idx-a-20-1 has format 3, this build reads 1") as caught:
        refuse_newer(Manifest((newer, generation(10))))
    refuse_newer(Manifest((generation(30), newer)))
    refuse_newer(Manifest())

    assert (caught.value.number, caught.value.version) == (3, "9.1")


def test_a_paused_writer_is_fenced_off() -> None:
    manifest = kept(10).with_newest(generation(20, fence=5))
    assert manifest is not None

    assert manifest.with_newest(generation(30, fence=4)) is None
    assert manifest.with_newest(generation(20, fence=6)) is None
    assert manifest.with_newest(generation(21, fence=5)) is not None


def test_a_remade_stream_begins_at_a_smaller_sequence() -> None:
    manifest = kept(100).with_newest(generation(3, fence=2, created="b"))

    assert manifest is not None
    assert manifest.purge_limit("b") == 0


def test_no_manifest_is_an_empty_one_and_a_bad_one_is_named() -> None:
    assert decode_manifest(None) == Manifest()
    with pytest.raises(CodecError, match="3 bytes"):
        decode_manifest(b"{]}")
    with pytest.raises(CodecError, match="schema 9"):
        decode_manifest(b'{"schema": 9, "generations": []}')
