#!/bin/sh
# Tell Kubernetes which engines may leave first: sets the annotation
# controller.kubernetes.io/pod-deletion-cost of a bucket's engine pods to what losing each would cost, in
# ms of prefill, as a router says. A ReplicaSet that is scaled in deletes the pods of least cost first.
#   mark-drain-costs.sh NAMESPACE BUCKET ROUTER_URL        e.g. kvmesh chat http://router-chat:8000
# Run it every minute or so (costs move with the load), and before `kubectl scale`. $KVMESH_API_KEY: the
# key of an admin or viewer, where the router asks for one.
set -eu
[ $# -eq 3 ] || { echo "usage: $0 NAMESPACE BUCKET ROUTER_URL" >&2; exit 2; }
namespace=$1 bucket=$2 router=$3
pods=$(kubectl get pods --namespace "$namespace" --selector "kvmesh/engine=true,kvmesh/bucket=$bucket" \
    --output 'jsonpath={range .items[*]}{.metadata.name}{" "}{.status.podIP}{"\n"}{end}')
PODS=$pods BUCKET=$bucket ROUTER=$router python3 -c '
import json, os, urllib.parse, urllib.request
request = urllib.request.Request(os.environ["ROUTER"] + "/v1/overview?limit=0")
if key := os.environ.get("KVMESH_API_KEY"):
    request.add_header("authorization", "Bearer " + key)
workers = json.load(urllib.request.urlopen(request, timeout=10))["workers"]
costs = {}
for one in workers:
    cost_s = one["figures"].get("drain_cost_s")
    if one["bucket"] == os.environ["BUCKET"] and cost_s is not None:
        ip = urllib.parse.urlsplit(one["url"]).hostname
        # The ranks of one engine leave together.
        costs[ip] = costs.get(ip, 0.0) + cost_s
for line in os.environ["PODS"].splitlines():
    name, _, ip = line.partition(" ")
    if ip in costs:
        print(name, min(round(1000 * costs[ip]), 2**31 - 1))
' | while read -r pod cost; do
    kubectl annotate pod "$pod" --namespace "$namespace" --overwrite \
        "controller.kubernetes.io/pod-deletion-cost=$cost"
done
