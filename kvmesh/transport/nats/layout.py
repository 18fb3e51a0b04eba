"""What a mesh is called on a NATS server: its buckets, and where answers arrive."""

from kvmesh.actors.wire import Subjects


def inbox_prefix(role: str, *names: str) -> str:
    """Return where answers to one process arrive: its own, so that no other may listen there."""
    return ".".join(("_INBOX", role, *names))


def meta_bucket(namespace: str) -> str:
    """Return the KV bucket of leases and manifests; only routers may write it."""
    return f"{namespace}_meta"


def snapshot_bucket(subjects: Subjects) -> str:
    """Return the object bucket of one bucket's snapshots."""
    return f"{subjects.namespace}_snapshots_{subjects.bucket}"


def home_bucket(namespace: str) -> str:
    """Return the KV bucket of where conversations are; only meta-routers may write it."""
    return f"{namespace}_homes"


def program_bucket(subjects: Subjects) -> str:
    """Return the KV bucket of one bucket's agents; only its routers may write it."""
    return f"{subjects.namespace}_programs_{subjects.bucket}"


def id_bucket(subjects: Subjects) -> str:
    """Return the KV bucket of whose ids are; only the bucket's routers may write it."""
    return f"{subjects.namespace}_ids_{subjects.bucket}"


def usage_stream(subjects: Subjects) -> str:
    """Return the stream of what was used in a bucket; only its routers may write it."""
    return f"{subjects.namespace}_usage_{subjects.bucket}"


def session_bucket(subjects: Subjects) -> str:
    """Return the KV bucket of one bucket's sessions; only its routers may write it."""
    return f"{subjects.namespace}_sessions_{subjects.bucket}"
