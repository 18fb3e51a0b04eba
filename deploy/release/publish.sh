#!/usr/bin/env bash
# Push what `make release` has made in dist/: publish.sh index|image|chart. Who may is decided by what
# is logged in: PyPI's trusted publisher or UV_PUBLISH_TOKEN, `docker login`, `helm registry login`.
set -euo pipefail
cd "$(dirname "$0")/../.."
DIST="${DIST:-dist}"
REGISTRY="${REGISTRY:-ghcr.io/kvmesh}"
UV="${UV:-uv}"
(cd "$DIST" && sha256sum --check --quiet SHA256SUMS)
version="$(sed -n 's/^  "version": "\(.*\)",$/\1/p' "$DIST/BUILD.json")"

index() {
    "$UV" publish "$DIST/kvmesh-$version.tar.gz" "$DIST/kvmesh-$version-"*.whl \
        "$DIST/kvmesh_lab-$version.tar.gz" "$DIST/kvmesh_lab-$version-"*.whl
}

# One tag for all machines, over one image of each.
image() {
    local name="$REGISTRY/kvmesh:$version" file machine images=()
    for file in "$DIST/kvmesh-image-$version-linux-"*.tar.gz; do
        machine="${file##*-linux-}" && machine="${machine%.tar.gz}"
        docker load --quiet --input "$file"
        docker tag "kvmesh:$version" "$name-$machine"
        docker push --quiet "$name-$machine"
        images+=("$name-$machine")
    done
    docker buildx imagetools create --tag "$name" "${images[@]}"
}

chart() {
    helm push "$DIST/kvmesh-chart-$version.tgz" "oci://$REGISTRY/charts"
}

case "${1:-}" in
index | image | chart) "$1" ;;
*) sed -n '2,3p' "$0" >&2 && exit 2 ;;
esac
