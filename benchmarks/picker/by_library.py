"""`kvmesh` with HTTP/2 of gRPC by the h2 library, and all else compiled."""

from kvmesh.cli import main
from kvmesh.transport.grpc import connection
from tests.reference.transport.library_session import LibrarySession

if __name__ == "__main__":
    vars(connection)["make_session"] = LibrarySession
    main()
