{{/* Names, labels and what every kvmesh container has. Maps are handed on as JSON: `include … | fromJson`. */}}

{{- define "kvmesh.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := .Chart.Name -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What names of objects begin with. */}}
{{- define "kvmesh.prefix" -}}
{{- if kindIs "invalid" .Values.namePrefix -}}
{{- include "kvmesh.fullname" . -}}-
{{- else -}}
{{- .Values.namePrefix -}}
{{- end -}}
{{- end -}}

{{- define "kvmesh.routerName" -}}{{ include "kvmesh.prefix" .root }}router-{{ .bucket }}{{- end -}}
{{- define "kvmesh.pickerName" -}}{{ include "kvmesh.prefix" .root }}picker-{{ .bucket }}{{- end -}}
{{- define "kvmesh.metaRouterName" -}}{{ include "kvmesh.prefix" . }}meta-router{{- end -}}
{{- define "kvmesh.natsName" -}}{{ include "kvmesh.prefix" . }}nats{{- end -}}
{{- define "kvmesh.natsPeersName" -}}{{ include "kvmesh.prefix" . }}nats-peers{{- end -}}
{{- define "kvmesh.engineName" -}}{{ include "kvmesh.prefix" .root }}{{ .engine }}{{- end -}}
{{- define "kvmesh.configName" -}}{{ include "kvmesh.fullname" . }}-mesh{{- end -}}
{{- define "kvmesh.discoveryName" -}}{{ include "kvmesh.prefix" . }}discovery{{- end -}}
{{- define "kvmesh.markerName" -}}{{ include "kvmesh.prefix" . }}mark-pods{{- end -}}
{{/* The front door's Service: of meta-routers, in mode standalone of the routers. */}}
{{- define "kvmesh.frontName" -}}{{ include "kvmesh.fullname" . }}{{- end -}}
{{- define "kvmesh.frontPort" -}}
{{- if eq .Values.mode "mesh" -}}{{ .Values.metaRouter.service.port | int }}{{- else -}}
{{- $all := include "kvmesh.buckets" . | fromJson -}}
{{- range $bucket := values $all -}}{{ $bucket.service.port | int }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels that select the pods of a component: dict "root" $ "component" "router" ["bucket" "chat"]. */}}
{{- define "kvmesh.selectorLabels" -}}
app.kubernetes.io/name: {{ if eq .component "nats" }}nats{{ else }}kvmesh-{{ .component }}{{ end }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .bucket }}
kvmesh/bucket: {{ . }}
{{- end }}
{{- end -}}

{{/* Labels of an object; the same dict. */}}
{{- define "kvmesh.labels" -}}
{{ include "kvmesh.selectorLabels" . }}
app.kubernetes.io/part-of: kvmesh
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- if .root.Chart.AppVersion }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with merge (dict) (.extraLabels | default dict) .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* metadata of an object: the same dict and "name", ["annotations"], ["extraLabels"]. */}}
{{- define "kvmesh.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "kvmesh.labels" . | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* metadata of a pod: dict root, component, [bucket], labels, annotations; nats: it logs in at NATS. */}}
{{- define "kvmesh.podMetadata" -}}
labels:
  {{- include "kvmesh.selectorLabels" . | nindent 2 }}
  app.kubernetes.io/part-of: kvmesh
  {{- if and .nats (eq .root.Values.mode "mesh") }}
  kvmesh/nats-client: "true"
  {{- end }}
  {{- with merge (dict) (.labels | default dict) .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "kvmesh.image" -}}
{{- with .Values.image -}}
{{- .repository }}{{ ternary "@" ":" (hasPrefix "sha256:" .tag) }}{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Buckets with their defaults, by name, as JSON. */}}
{{- define "kvmesh.buckets" -}}
{{- $out := dict -}}
{{- range $name, $bucket := .Values.buckets | default (dict "default" dict) -}}
{{- $_ := set $out $name (mergeOverwrite (deepCopy $.Values.bucketDefaults) (deepCopy ($bucket | default dict))) -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{/* Engines with their defaults, by name, as JSON; `bucket` is always set. */}}
{{- define "kvmesh.engines" -}}
{{- $buckets := .Values.buckets | default (dict "default" dict) -}}
{{- $out := dict -}}
{{- range $name, $engine := .Values.engines -}}
{{- $one := mergeOverwrite (deepCopy $.Values.engineDefaults) (deepCopy ($engine | default dict)) -}}
{{- if not $one.bucket -}}
{{- if ne (len $buckets) 1 -}}{{- fail (printf "engines.%s.bucket: name one of the buckets: %s" $name (keys $buckets | sortAlpha | join ", ")) -}}{{- end -}}
{{- $_ := set $one "bucket" (keys $buckets | first) -}}
{{- else if not (hasKey $buckets $one.bucket) -}}
{{- fail (printf "engines.%s.bucket: there is no bucket %q, only: %s" $name $one.bucket (keys $buckets | sortAlpha | join ", ")) -}}
{{- end -}}
{{- $_ := set $out $name $one -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{/* The tokenizer of a bucket as JSON: dict "root" $ "bucket" MERGED. */}}
{{- define "kvmesh.tokenizer" -}}
{{- mergeOverwrite (deepCopy .root.Values.tokenizer) (deepCopy (.bucket.tokenizer | default dict)) | toJson -}}
{{- end -}}

{{/* A value as kvmesh reads it from the environment. */}}
{{- define "kvmesh.settingValue" -}}
{{- if kindIs "slice" . -}}
{{- range . -}}{{- if regexMatch "\\s" (toString .) -}}{{- fail (printf "settings: %q: values of a list must hold no space" .) -}}{{- end -}}{{- end -}}
{{- join " " . -}}
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}{{- printf "%d" (int64 .) -}}
{{- else -}}{{- toString . -}}
{{- end -}}
{{- end -}}

{{/* Settings that the chart sets by values of its own; elsewhere they would be set twice. */}}
{{- define "kvmesh.ownSettings" -}}
{{- dict "KVMESH_BUCKET" "buckets" "KVMESH_ROUTER_ID" "nothing: pods have their names" "KVMESH_WORKER_ID" "nothing: pods have their names"
  "KVMESH_ADVERTISE_URL" "nothing: pods have their addresses" "KVMESH_ENGINE_URL" "engines" "KVMESH_ROLE" "engines.NAME.role"
  "KVMESH_KV_CONNECTOR" "engines.NAME.kvTransfer.connector" "KVMESH_BOOTSTRAP_PORT" "engines.NAME.kvTransfer.sideChannelPort"
  "KVMESH_KV_EVENTS_ENDPOINT" "engines.NAME.kvEvents.port" "KVMESH_KV_REPLAY_ENDPOINT" "engines.NAME.kvEvents.replayPort"
  "KVMESH_HTTP_HOST" "nothing: pods listen on all addresses" "KVMESH_HTTP_PORT" "service.port (containers listen on 8000), or nothing: a sidecar's is 9400"
  "KVMESH_ADMIN_PORT" "adminPort" "KVMESH_DASHBOARD_PORT" "dashboardPort" "KVMESH_DRAIN_S" "drainS" "KVMESH_TOKENIZER" "tokenizer"
  "KVMESH_WORKER" "buckets.NAME.workers" "KVMESH_DISCOVER" "discovery" "KVMESH_INFERENCE_POOL" "gateway.inferencePool"
  "KVMESH_MARK_PODS" "markPods"
  "KVMESH_NOTICE_S" "nothing: it is 5" "KVMESH_NATS_URL" "nats.url"
  "KVMESH_NATS_CREDS" "nats.auth" "KVMESH_NATS_TRUST" "nats.auth" "KVMESH_NATS_TLS_CA" "nats.tls"
  "KVMESH_STREAM_REPLICAS" "nats.streams.replicas" "KVMESH_STREAM_MAX_BYTES" "nats.streams.maxBytes"
  "KVMESH_API_KEYS" "auth.apiKeys" "KVMESH_SESSION_SECRET_FILE" "auth.session" "KVMESH_ADMIN_TOKEN_FILE" "auth.adminToken" "KVMESH_UPSTREAM_KEY_FILE" "auth.upstreamKey"
  "KVMESH_HASH_SECRET_FILE" "auth.hashSecret" "KVMESH_TENANT_SECRET_FILE" "auth.tenantSecret"
  "KVMESH_TLS_CERT" "auth.tls" "KVMESH_TLS_KEY" "auth.tls" "KVMESH_TLS_CLIENT_CA" "auth.tls.clientCaSecret"
  "KVMESH_GRPC_HOST" "picker" "KVMESH_GRPC_PORT" "picker" "KVMESH_GRPC_TLS_CERT" "picker.tls" "KVMESH_GRPC_TLS_KEY" "picker.tls" | toJson -}}
{{- end -}}

{{/* Settings as a map of variables, as JSON. */}}
{{- define "kvmesh.variables" -}}
{{- $out := dict -}}
{{- $own := include "kvmesh.ownSettings" $ | fromJson -}}
{{- range $name, $value := . -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $variable := printf "KVMESH_%s" ($name | replace "-" "_" | upper) -}}
{{- if hasKey $own $variable -}}{{- fail (printf "settings: %s is set by the chart; use %s" $name (get $own $variable)) -}}{{- end -}}
{{- $_ := set $out $variable (include "kvmesh.settingValue" $value) -}}
{{- end -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{/* Settings as entries of a container's env. Later maps win: list of maps. */}}
{{- define "kvmesh.env" -}}
{{- $all := dict -}}
{{- range . -}}
{{- $all = mergeOverwrite $all (include "kvmesh.variables" . | fromJson) -}}
{{- end -}}
{{- range $name, $value := $all }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end -}}
{{- end -}}

{{- define "kvmesh.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "kvmesh.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Where a pod may run: dict root, component, [bucket], of (a map with nodeSelector, tolerations, affinity …). */}}
{{- define "kvmesh.scheduling" -}}
{{- $pod := .of.pod | default dict -}}
{{- /* A Service called kvmesh-http would set KVMESH_HTTP_PORT. */}}
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $pod.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $pod.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pod.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pod.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if not (or $pod.affinity .of.alone) }}
topologySpreadConstraints:
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ $key }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "kvmesh.selectorLabels" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}
