{{/* The container `kvmesh worker`: dict "root" $ "engine" ENGINE ["endpoint" of an existing engine]. */}}
{{- define "kvmesh.sidecar" -}}
{{- $engine := .engine -}}
{{- $own := dict "root" .root "component" "worker" -}}
# An ordinary container, not an init container that stays: it gets SIGTERM together with the engine, and tells the
# routers to send nothing more.
- name: kvmesh-worker
  image: {{ include "kvmesh.image" .root | quote }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  args: [worker]
  envFrom: [{configMapRef: {name: {{ include "kvmesh.configName" .root }}}}]
  env:
    - name: POD_IP
      valueFrom: {fieldRef: {fieldPath: status.podIP}}
    {{- if .endpoint }}
    - {name: KVMESH_WORKER_ID, value: {{ .endpoint.name | quote }}}
    - {name: KVMESH_ENGINE_URL, value: {{ .endpoint.url | quote }}}
    {{- with .endpoint.kvEvents }}
    - {name: KVMESH_KV_EVENTS_ENDPOINT, value: {{ . | quote }}}
    {{- end }}
    {{- with .endpoint.kvReplay }}
    - {name: KVMESH_KV_REPLAY_ENDPOINT, value: {{ . | quote }}}
    {{- end }}
    {{- else }}
    - name: KVMESH_WORKER_ID
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    - {name: KVMESH_ENGINE_URL, value: "http://$(POD_IP):{{ int $engine.port }}"}
    # SGLang tells where its publishers are, and vLLM from 0.31 on.
    {{- if and $engine.kvEvents.enabled (ne $engine.engine "sglang") }}
    - {name: KVMESH_KV_EVENTS_ENDPOINT, value: "tcp://127.0.0.1:{{ int $engine.kvEvents.port }}"}
    - {name: KVMESH_KV_REPLAY_ENDPOINT, value: "tcp://127.0.0.1:{{ int $engine.kvEvents.replayPort }}"}
    {{- end }}
    {{- end }}
    - {name: KVMESH_BUCKET, value: {{ $engine.bucket | quote }}}
    - {name: KVMESH_HTTP_HOST, value: 0.0.0.0}
    - {name: KVMESH_HTTP_PORT, value: "9400"}
    {{- if not $engine.kvEvents.enabled }}
    - {name: KVMESH_KV_EVENTS, value: "false"}
    {{- end }}
    {{- with include "kvmesh.blockSize" $engine }}
    - {name: KVMESH_KV_CACHE_BLOCK_SIZE, value: {{ . | quote }}}
    {{- end }}
    {{- if ne $engine.role "both" }}
    - {name: KVMESH_ROLE, value: {{ $engine.role }}}
    {{- end }}
    {{- with include "kvmesh.connector" $engine }}
    - {name: KVMESH_KV_CONNECTOR, value: {{ . }}}
    {{- end }}
    {{- with include "kvmesh.bootstrapPort" $engine }}
    - {name: KVMESH_BOOTSTRAP_PORT, value: {{ . | quote }}}
    {{- end }}
    {{- include "kvmesh.auth.env" $own | nindent 4 }}
    {{- include "kvmesh.env" (list $engine.sidecar.settings) | nindent 4 }}
  ports: [{name: sidecar, containerPort: 9400}]
  # No readiness probe: an engine serves on while its sidecar waits for NATS.
  startupProbe:
    httpGet: {path: /health, port: sidecar}
    periodSeconds: 2
    failureThreshold: 60
  livenessProbe:
    httpGet: {path: /health, port: sidecar}
    periodSeconds: 10
    timeoutSeconds: 5
  resources:
    {{- toYaml $engine.sidecar.resources | nindent 4 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    seccompProfile: {type: RuntimeDefault}
    {{- include "kvmesh.containerSecurity" . | nindent 4 }}
  {{- with printf "%s\n%s" (include "kvmesh.natsMounts" $own) (include "kvmesh.auth.mounts" $own) | trim }}
  volumeMounts:
    {{- . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Its volumes: the same dict. */}}
{{- define "kvmesh.sidecarVolumes" -}}
{{- $nats := .root.Values.nats -}}
{{- if $nats.auth.enabled }}
{{- $suffix := ternary "nk" "creds" (eq $nats.auth.kind "nkey") }}
- name: nats-key
  secret:
    secretName: {{ $nats.auth.secretPrefix }}-worker
    # The engine's container runs as whoever it wants, so the pod has no common group. The keys of other buckets are
    # not to be seen from here.
    defaultMode: 0444
    items:
      - {key: {{ .engine.bucket }}.{{ $suffix }}, path: nats.{{ $suffix }}}
      - {key: trust.json, path: trust.json}
      {{- if include "kvmesh.auth.hashSecret" (dict "root" .root "component" "worker") }}
      - {key: {{ .engine.bucket }}.hash.secret, path: hash.secret}
      {{- end }}
{{- end }}
{{- with $nats.tls.existingSecret }}
- name: nats-ca
  secret:
    secretName: {{ . }}
    defaultMode: 0444
    items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- include "kvmesh.auth.volumes" (dict "root" .root "component" "worker") | replace "defaultMode: 0440" "defaultMode: 0444" }}
{{- end -}}
