#!/usr/bin/env bash
# Print the Secrets the manifests name, from keys in DIRECTORY (made when missing, kept otherwise):
#   ./make-secrets.sh DIRECTORY SERVERS NAMESPACE [BUCKET...] | kubectl apply -f -
# SERVERS is the number of NATS servers: 1 for dev, 3 for prod. BUCKETs default to chat code.
# For a release of the Helm chart: PREFIX=RELEASE- (what names of its objects begin with).
set -euo pipefail
directory="$1" servers="$2" namespace="$3"
shift 3
[ $# -gt 0 ] || set -- chat code
KVMESH="${KVMESH:-kvmesh}"
PREFIX="${PREFIX:-}"

# Kubelets probe the pod's address; the NetworkPolicy keeps other pods from the monitoring port.
arguments=(--out "$directory" --monitor-host 0.0.0.0)
for bucket in "$@"; do
    arguments+=(--router "$bucket/*" --worker "$bucket/*")
done
if [ "$servers" -gt 1 ]; then
    hosts=$(seq -s, -f "${PREFIX}nats-%g.${PREFIX}nats-peers" 0 $((servers - 1)))
    arguments+=(--cluster "$hosts")
fi
"$KVMESH" nats-accounts "${arguments[@]}" >&2

secret() {
    echo "---"
    kubectl create secret generic "$1" --namespace "$namespace" --dry-run=client -o yaml "${@:2}"
}
seeds="$directory/seeds"
config=(--from-file="$directory/nats.conf" --from-file="$directory/accounts.conf")
[ "$servers" -gt 1 ] && config+=(--from-file="$directory/cluster.conf")
secret kvmesh-nats-config "${config[@]}"
trust=(--from-file="$directory/trust.json")
secret kvmesh-nats-meta-router --from-file=nats.nk="$seeds/meta-router.nk" "${trust[@]}"
admins=(--from-file="$seeds/admin.nk" "${trust[@]}")
workers=("${trust[@]}")
for bucket in "$@"; do
    secret "kvmesh-nats-router-$bucket" --from-file=nats.nk="$seeds/router.$bucket.any.nk" \
        --from-file=hash.secret="$seeds/hash.$bucket.secret" "${trust[@]}"
    admins+=(--from-file="$seeds/admin.$bucket.nk")
    workers+=(--from-file="$bucket.nk=$seeds/worker.$bucket.any.nk"
        --from-file="$bucket.hash.secret=$seeds/hash.$bucket.secret")
done
secret kvmesh-nats-admin "${admins[@]}"
secret kvmesh-nats-worker "${workers[@]}"
