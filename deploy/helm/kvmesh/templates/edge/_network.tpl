{{/* Pieces of network policies. A rule is an entry of `egress` or `ingress`. */}}

{{/* A peer of this namespace: dict root, component, [bucket]. */}}
{{- define "kvmesh.net.peer" -}}
- podSelector:
    matchLabels:
      {{- include "kvmesh.selectorLabels" . | nindent 6 }}
{{- end -}}

{{/* Pods of engines: dict [bucket]. They may stem from other charts, so no release is named. */}}
{{- define "kvmesh.net.engineLabels" -}}
kvmesh/engine: "true"
{{- with .bucket }}
kvmesh/bucket: {{ . }}
{{- end }}
{{- end -}}

{{- define "kvmesh.net.monitoring" -}}
- namespaceSelector:
    matchLabels: { {{- .Values.monitoring.namespaceLabel | quote }}: "true"}
{{- end -}}

{{- define "kvmesh.net.gateways" -}}
{{- if .Values.networkPolicy.gatewayFrom -}}
{{- toYaml .Values.networkPolicy.gatewayFrom -}}
{{- else -}}
- namespaceSelector: {}
  podSelector:
    matchExpressions: [{key: gateway.networking.k8s.io/gateway-name, operator: Exists}]
{{- end -}}
{{- end -}}

{{- define "kvmesh.net.dns" -}}
{{- $dns := .Values.networkPolicy.dns -}}
- to:
    - namespaceSelector: {}
      podSelector:
        matchLabels:
          {{- toYaml $dns.podLabels | nindent 10 }}
    {{- if $dns.nodeLocal.enabled }}
    - ipBlock: {cidr: {{ $dns.nodeLocal.cidr }}}
    {{- end }}
    {{- range $dns.cidrs }}
    - ipBlock: {cidr: {{ . }}}
    {{- end }}
  ports:
    {{- range $dns.ports }}
    - {port: {{ . }}, protocol: UDP}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
{{- end -}}

{{/* Peers by namespace and pod labels, and by address: dict namespaceLabels, podLabels, cidrs. */}}
{{- define "kvmesh.net.named" -}}
{{- if or .namespaceLabels .podLabels }}
- namespaceSelector:
    {{- if .namespaceLabels }}
    matchLabels:
      {{- toYaml .namespaceLabels | nindent 6 }}
    {{- else }} {}
    {{- end }}
  {{- with .podLabels }}
  podSelector:
    matchLabels:
      {{- toYaml . | nindent 6 }}
  {{- end }}
{{- end }}
{{- range .cidrs }}
- ipBlock: {cidr: {{ . }}}
{{- end }}
{{- end -}}

{{- define "kvmesh.net.otlp" -}}
{{- $otlp := .Values.networkPolicy.otlp -}}
{{- if $otlp.endpoint }}
{{- $host := (urlParse $otlp.endpoint).host }}
- ports: [{port: {{ if contains ":" $host }}{{ regexFind "[0-9]+$" $host }}{{ else }}{{ ternary 443 80 (hasPrefix "https" $otlp.endpoint) }}{{ end }}}]
  {{- with include "kvmesh.net.named" $otlp | trim }}
  to:
    {{- . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Towards NATS: dict root, [monitor]: whether the servers' monitoring port is asked, too. */}}
{{- define "kvmesh.net.nats" -}}
{{- if eq .root.Values.mode "mesh" }}
{{- $external := .root.Values.networkPolicy.externalNats }}
{{- $ports := list 4222 }}
{{- $monitor := 8222 }}
{{- if eq .root.Values.nats.mode "external" }}
{{- $ports = list (int $external.port) }}
{{- $monitor = int $external.monitorPort }}
{{- end }}
{{- if .monitor }}{{- $ports = append $ports $monitor }}{{- end }}
- ports:
    {{- range $ports }}
    - {port: {{ . }}}
    {{- end }}
  to:
    {{- if ne .root.Values.nats.mode "external" }}
    {{- /* The subchart's pods have the same labels: nats-server.nameOverride. */}}
    {{- include "kvmesh.net.peer" (dict "root" .root "component" "nats") | nindent 4 }}
    {{- else }}
    {{- with include "kvmesh.net.named" $external | trim }}
    {{- . | nindent 4 }}
    {{- else }}
    {{- fail "nats.mode is external: name where the servers are in networkPolicy.externalNats (cidrs, or namespaceLabels and podLabels)" }}
    {{- end }}
    {{- end }}
{{- end }}
{{- end -}}

{{- define "kvmesh.net.apiServer" -}}
{{- with .Values.networkPolicy.apiServer }}
- ports:
    {{- range .ports }}
    - {port: {{ . }}}
    {{- end }}
  {{- with include "kvmesh.net.named" (dict "cidrs" .cidrs) | trim }}
  to:
    {{- . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Entries of `ports` from a list of ports and of ranges, as "8000" and "5557-5564". */}}
{{- define "kvmesh.net.ports" -}}
{{- range . | uniq | sortAlpha }}
{{- if contains "-" . }}
- {port: {{ regexFind "^[0-9]+" . }}, endPort: {{ regexFind "[0-9]+$" . }}}
{{- else }}
- {port: {{ . }}}
{{- end }}
{{- end }}
{{- end -}}

{{/* The ports of an engine's KV events and replay, for as many ranks as a machine has: rank r adds r. */}}
{{- define "kvmesh.net.eventPorts" -}}
{{- if .kvEvents.enabled -}}
{{- range $at, $port := list .kvEvents.port .kvEvents.replayPort -}}
{{- if $at }} {{ end }}{{ int $port }}-{{ add (int $port) 7 }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The port of a URL. */}}
{{- define "kvmesh.net.portOf" -}}
{{- $port := regexFind ":[0-9]+$" (urlParse .).host | trimPrefix ":" -}}
{{- if $port -}}{{ $port }}{{- else if hasPrefix "https:" . -}}443{{- else -}}80{{- end -}}
{{- end -}}

{{/* The ports of engines that somebody else runs, spaces between them: dict engine, events. */}}
{{- define "kvmesh.net.existingPorts" -}}
{{- $ports := list -}}
{{- if .engine.existing.service -}}{{- $ports = append $ports (int .engine.port | toString) -}}{{- end -}}
{{- range include "kvmesh.existingEndpoints" . | fromJsonArray -}}
{{- $ports = append $ports (include "kvmesh.net.portOf" .url) -}}
{{- if $.events -}}
{{- range list .kvEvents .kvReplay -}}
{{- if . -}}{{- $ports = append $ports (include "kvmesh.net.portOf" .) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .events -}}{{- $ports = concat $ports (include "kvmesh.net.eventPorts" .engine | splitList " ") -}}{{- end -}}
{{- without $ports "" | uniq | join " " -}}
{{- end -}}

{{/* Towards the engines of a bucket: dict root, bucket, events (whether events are read, too). */}}
{{- define "kvmesh.net.engines" -}}
{{- $ports := list -}}
{{- $existing := list -}}
{{- range $name, $engine := include "kvmesh.engines" .root | fromJson -}}
{{- if eq $engine.bucket $.bucket -}}
{{- if eq $engine.kind "existing" -}}
{{- $existing = append $existing (dict "name" $name "engine" $engine) -}}
{{- else -}}
{{- $ports = append $ports (int $engine.port | toString) -}}
{{- if eq $engine.kvTransfer.connector "mooncake" -}}{{- $ports = append $ports (int $engine.kvTransfer.sideChannelPort | toString) -}}{{- end -}}
{{- if $.events -}}{{- $ports = concat $ports (include "kvmesh.net.eventPorts" $engine | splitList " ") -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $ports = without $ports "" | default (list "8000") }}
- to:
    - podSelector:
        matchLabels:
          {{- include "kvmesh.net.engineLabels" (dict "bucket" .bucket) | nindent 10 }}
  ports:
    {{- include "kvmesh.net.ports" $ports | trim | nindent 4 }}
{{- range $existing }}
{{- include "kvmesh.net.existing" (dict "root" $.root "name" .name "engine" .engine "events" $.events) }}
{{- end }}
{{- include "kvmesh.net.addresses" .root.Values.networkPolicy.externalEngines }}
{{- end -}}

{{/* Towards engines that somebody else runs in this cluster: dict root, name, engine, events. */}}
{{- define "kvmesh.net.existing" -}}
{{- if .engine.existing.podLabels }}
- to:
    {{- include "kvmesh.net.named" (dict "podLabels" .engine.existing.podLabels) | trim | nindent 4 }}
  ports:
    {{- include "kvmesh.net.ports" (include "kvmesh.net.existingPorts" . | splitList " ") | trim | nindent 4 }}
{{- else if not .root.Values.networkPolicy.externalEngines }}
{{- fail (printf "engines.%s.existing: name the engines' podLabels, or their addresses in networkPolicy.externalEngines: the network policies would let nobody reach them" .name) }}
{{- end }}
{{- end -}}

{{/* Towards addresses outside the cluster: a list of cidr and ports. */}}
{{- define "kvmesh.net.addresses" -}}
{{- range . }}
- to: [{ipBlock: {cidr: {{ .cidr }}}}]
  ports:
    {{- range .ports }}
    - {port: {{ . }}}
    {{- end }}
{{- end }}
{{- end -}}

{{/* Towards siblings: a router that is not heard over NATS is asked whether it lives. */}}
{{- define "kvmesh.net.siblings" -}}
{{- include "kvmesh.net.peer" (dict "root" .root "component" "router" "bucket" .bucket) }}
{{- if .picker }}
{{ include "kvmesh.net.peer" (dict "root" .root "component" "picker" "bucket" .bucket) }}
{{- end }}
{{- end -}}

{{/* The hub that a tokenizer is downloaded from: dict root, bucket MERGED. */}}
{{- define "kvmesh.net.hub" -}}
{{- $tokenizer := include "kvmesh.tokenizer" . | fromJson -}}
{{- if eq $tokenizer.source "init" }}
- ports:
    {{- range $tokenizer.init.egressPorts }}
    - {port: {{ . }}}
    {{- end }}
{{- end }}
{{- end -}}

{{/* `ports` of what engines open for each other; nothing where that is all. */}}
{{- define "kvmesh.net.amongEngines" -}}
{{- with .Values.networkPolicy.engines -}}
{{- if not .allPorts }}
{{- $ports := list }}
{{- range concat .nixl.ports .ray.ports }}
{{- $ports = append $ports (ternary (toString .) (int . | toString) (kindIs "string" .)) }}
{{- end }}
ports:
  {{- include "kvmesh.net.ports" $ports | trim | nindent 2 }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* "true" where engines of a bucket speak with each other: they share requests, KV blocks or a model: dict root,
bucket. */}}
{{- define "kvmesh.net.enginesShare" -}}
{{- $out := "" -}}
{{- range $engine := include "kvmesh.engines" .root | fromJson -}}
{{- if and (eq $engine.bucket $.bucket) (or (ne $engine.role "both") (ne $engine.kvTransfer.connector "") (eq $engine.kind "leaderworkerset")) -}}
{{- $out = "true" -}}
{{- end -}}
{{- end -}}
{{- $out -}}
{{- end -}}

{{/* The engines of a bucket and their further nodes: dict bucket. */}}
{{- define "kvmesh.net.amongPeers" -}}
- podSelector:
    matchLabels:
      {{- include "kvmesh.net.engineLabels" . | nindent 6 }}
- podSelector:
    matchLabels: {kvmesh/engine-node: "true", kvmesh/bucket: {{ .bucket }}}
{{- end -}}
