{{/* The environment that all processes share, and how they log in at NATS. */}}

{{- define "kvmesh.natsUrl" -}}
{{- if .Values.nats.url -}}{{ .Values.nats.url }}
{{- else if eq .Values.nats.mode "external" -}}
{{- fail "nats.url: name the servers with nats.mode external, e.g. nats://nats.nats:4222" -}}
{{- else if eq .Values.nats.mode "dependency" -}}
{{- $server := index .Values "nats-server" -}}
{{- $full := include "kvmesh.natsServerName" . -}}
{{- if $server.config.cluster.enabled -}}
{{- $urls := list -}}
{{- range $number := until (int $server.config.cluster.replicas) -}}
{{- $urls = append $urls (printf "nats://%s-%d.%s-headless:4222" $full $number $full) -}}
{{- end -}}
{{- join "," $urls -}}
{{- else -}}nats://{{ $full }}:4222
{{- end -}}
{{- else if gt (int .Values.nats.replicas) 1 -}}
{{- $urls := list -}}
{{- range $number := until (int .Values.nats.replicas) -}}
{{- $urls = append $urls (printf "nats://%s-%d.%s:4222" (include "kvmesh.natsName" $) $number (include "kvmesh.natsPeersName" $)) -}}
{{- end -}}
{{- join "," $urls -}}
{{- else -}}nats://{{ include "kvmesh.natsName" . }}:4222
{{- end -}}
{{- end -}}

{{/* What the NATS chart calls its objects. */}}
{{- define "kvmesh.natsServerName" -}}
{{- $server := index .Values "nats-server" -}}
{{- $name := default "nats-server" $server.nameOverride -}}
{{- if $server.fullnameOverride -}}{{ $server.fullnameOverride }}
{{- else if contains $name .Release.Name -}}{{ .Release.Name }}
{{- else -}}{{ .Release.Name }}-{{ $name }}
{{- end -}}
{{- end -}}

{{- define "kvmesh.streamReplicas" -}}
{{- if kindIs "invalid" .Values.nats.streams.replicas -}}
{{- $servers := int .Values.nats.replicas -}}
{{- if eq .Values.nats.mode "dependency" -}}
{{- $cluster := (index .Values "nats-server").config.cluster -}}
{{- $servers = ternary (int $cluster.replicas) 1 $cluster.enabled -}}
{{- end -}}
{{- if ge $servers 3 -}}3{{- else -}}1{{- end -}}
{{- else -}}{{ int .Values.nats.streams.replicas }}{{- end -}}
{{- end -}}

{{- define "kvmesh.configData" -}}
{{- $data := dict -}}
{{- if eq .Values.mode "mesh" -}}
{{- $_ := set $data "KVMESH_NATS_URL" (include "kvmesh.natsUrl" .) -}}
{{- if .Values.nats.auth.enabled -}}
{{- if eq .Values.nats.auth.kind "nkey" -}}
{{- $_ := set $data "KVMESH_NATS_CREDS" "/run/secrets/kvmesh/nats.nk" -}}
{{- else -}}
{{- $_ := set $data "KVMESH_NATS_CREDS" "/run/secrets/kvmesh/nats.creds" -}}
{{- end -}}
{{- $_ := set $data "KVMESH_NATS_TRUST" "/run/secrets/kvmesh/trust.json" -}}
{{- end -}}
{{- if .Values.nats.tls.existingSecret -}}
{{- $_ := set $data "KVMESH_NATS_TLS_CA" "/run/secrets/kvmesh-nats-ca/ca.crt" -}}
{{- end -}}
{{- $_ := set $data "KVMESH_STREAM_REPLICAS" (include "kvmesh.streamReplicas" .) -}}
{{- $_ := set $data "KVMESH_STREAM_MAX_BYTES" (printf "%d" (int64 .Values.nats.streams.maxBytes)) -}}
{{- end -}}
{{- with .Values.networkPolicy.otlp.endpoint -}}
{{- $_ := set $data "OTEL_EXPORTER_OTLP_ENDPOINT" . -}}
{{- end -}}
{{- toYaml (mergeOverwrite $data (include "kvmesh.variables" .Values.settings | fromJson)) -}}
{{- end -}}

{{/* Pods are made anew when what they read from the environment changes. */}}
{{- define "kvmesh.checksum" -}}
kvmesh/config: {{ include "kvmesh.configData" . | sha256sum | trunc 16 | quote }}
{{- end -}}

{{/* The volume with a member's seed: dict "root" $ "secret" NAME; nothing without login. */}}
{{- define "kvmesh.natsVolumes" -}}
{{- if eq .root.Values.mode "mesh" }}
{{- if .root.Values.nats.auth.enabled }}
- name: nats-key
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
{{- end }}
{{- with .root.Values.nats.tls.existingSecret }}
- name: nats-ca
  secret:
    secretName: {{ . }}
    defaultMode: 0444
    items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- end }}
{{- end -}}

{{- define "kvmesh.natsMounts" -}}
{{- if eq .root.Values.mode "mesh" }}
{{- if .root.Values.nats.auth.enabled }}
- {name: nats-key, mountPath: /run/secrets/kvmesh, readOnly: true}
{{- end }}
{{- if .root.Values.nats.tls.existingSecret }}
- {name: nats-ca, mountPath: /run/secrets/kvmesh-nats-ca, readOnly: true}
{{- end }}
{{- end }}
{{- end -}}

{{/* Configuration of embedded servers in which nobody logs in. */}}
{{- define "kvmesh.natsConf" -}}
listen: 0.0.0.0:4222
http: 0.0.0.0:8222
jetstream {
  store_dir: "/data"
  sync_interval: always
  strict: true
}
{{- if gt (int .Values.nats.replicas) 1 }}
{{- $routes := list }}
{{- range $number := until (int .Values.nats.replicas) }}
{{- $routes = append $routes (printf "nats://%s-%d.%s:6222" (include "kvmesh.natsName" $) $number (include "kvmesh.natsPeersName" $)) }}
{{- end }}
cluster {
  name: kvmesh
  listen: 0.0.0.0:6222
  routes: {{ toJson $routes }}
}
{{- end }}
{{- end -}}

{{/* The pod of the job that makes streams. */}}
{{- define "kvmesh.streamsPod" -}}
{{- $of := dict "root" $ "component" "streams" -}}
restartPolicy: OnFailure
automountServiceAccountToken: false
securityContext:
  {{- include "kvmesh.podSecurity" . | nindent 2 }}
{{- include "kvmesh.scheduling" (dict "root" $ "of" (dict "pod" (dict "tolerations" .Values.nats.pod.tolerations "nodeSelector" .Values.nats.pod.nodeSelector) "alone" true)) }}
containers:
  - name: streams
    image: {{ include "kvmesh.image" $ | quote }}
    imagePullPolicy: {{ $.Values.image.pullPolicy }}
    args:
      - nats-streams
      {{- range $name, $bucket := include "kvmesh.buckets" . | fromJson }}
      - --bucket
      - {{ $name }}
      {{- end }}
      {{- if .Values.nats.auth.enabled }}
      - --admin-keys
      - /run/secrets/kvmesh
      {{- end }}
    envFrom: [{configMapRef: {name: {{ include "kvmesh.configName" $ }}}}]
    resources:
      {{- toYaml .Values.nats.streams.job.resources | nindent 6 }}
    securityContext:
      {{- include "kvmesh.containerSecurity" . | nindent 6 }}
    {{- with include "kvmesh.natsMounts" $of | trim }}
    volumeMounts:
      {{- . | nindent 6 }}
    {{- end }}
{{- with include "kvmesh.natsVolumes" (dict "root" $ "secret" (printf "%s-admin" .Values.nats.auth.secretPrefix)) | trim }}
volumes:
  {{- . | nindent 2 }}
{{- end }}
{{- end -}}
