#!/usr/bin/env bash
# Write the keys of everybody in compose.yaml (kept when they exist), then start it all, or the
# services named. KVMESH_IMAGE, NATS_IMAGE, HAPROXY_IMAGE, NATS_EXPORTER_IMAGE,
# PROMETHEUS_IMAGE and GRAFANA_IMAGE name other images;
# KVMESH_ENGINES=vllm, sglang or tensorrt-llm runs these in bucket chat, on two GPUs.
set -euo pipefail
cd "$(dirname "$0")"
export KVMESH_IMAGE="${KVMESH_IMAGE:-kvmesh:local}"
files=(--file compose.yaml)
if [ -n "${KVMESH_ENGINES:-}" ]; then
    files+=(--file "engines-$KVMESH_ENGINES.yaml")
fi
members=()
for bucket in chat code; do
    for number in 0 1; do
        members+=(--router "$bucket/$bucket-$number" --worker "$bucket/worker-$number")
    done
done
mkdir -p accounts
# Root only to hand each file to the user the containers run as.
make_keys=(docker run --rm --user 0 --network none --cap-drop ALL --cap-add CHOWN
    --cap-add DAC_OVERRIDE --read-only --volume "$PWD/accounts:/accounts")
"${make_keys[@]}" "$KVMESH_IMAGE" nats-accounts --out /accounts \
    --owner 65532 --monitor-host 0.0.0.0 --cluster nats-0,nats-1,nats-2 "${members[@]}"
# Both meta-routers seal browsers' logins by it.
"${make_keys[@]}" --entrypoint python3 "$KVMESH_IMAGE" -c '
import os, pathlib, secrets
path = pathlib.Path("/accounts/session.secret")
if not path.exists():
    new = path.with_suffix(".new")
    new.touch(0o600)
    new.write_text(secrets.token_hex(32) + "\n")
    os.chown(new, 65532, 65532)
    new.replace(path)
'
if docker compose version >/dev/null 2>&1; then
    docker compose "${files[@]}" up --detach "$@"
else
    docker-compose "${files[@]}" up --detach "$@"
fi
