#!/usr/bin/env bash
# Print the Secret with the certificate that the pickers of each BUCKET show gateways, from DIRECTORY
# (made when missing, kept otherwise):
#   ./make-picker-tls.sh DIRECTORY NAMESPACE [BUCKET...] | kubectl apply -f -
# Self-signed, for ten years: gateways that speak TLS to endpoint pickers do not check it unless they
# are told to. Where yours does, have cert-manager write the Secret. BUCKETs default to chat.
set -euo pipefail
directory="$1" namespace="$2"
shift 2
[ $# -gt 0 ] || set -- chat
umask 077
mkdir -p "$directory"
for bucket in "$@"; do
    key="$directory/picker-$bucket.key" certificate="$directory/picker-$bucket.crt"
    host="picker-$bucket.$namespace.svc"
    if [ ! -e "$certificate" ]; then
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
            -subj "/CN=$host" -addext "subjectAltName=DNS:$host,DNS:$host.cluster.local" \
            -keyout "$key" -out "$certificate" >&2
    fi
    echo "---"
    kubectl create secret tls "kvmesh-picker-tls-$bucket" --namespace "$namespace" \
        --cert "$certificate" --key "$key" --dry-run=client -o yaml
done
