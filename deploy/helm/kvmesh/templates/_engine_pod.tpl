{{/* The pod of an engine: dict "root" $ "name" NAME "engine" ENGINE "full" OBJECT ["node" true: not the leader]. */}}
{{- define "kvmesh.enginePod" -}}
{{- $engine := .engine -}}
{{- $mocker := eq $engine.kind "mocker" -}}
{{- $sidecar := and (not .node) (include "kvmesh.hasSidecar" .) -}}
{{- $trtllm := and (eq $engine.engine "tensorrt-llm") (not $mocker) -}}
automountServiceAccountToken: false
# Longer than preStop may take.
terminationGracePeriodSeconds: {{ add (int $engine.drainS) 30 }}
{{- if and $mocker (not $engine.pod.podSecurityContext) }}
securityContext:
  {{- include "kvmesh.podSecurity" . | nindent 2 }}
{{- else }}
{{- with $engine.pod.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with $engine.pod.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- include "kvmesh.scheduling" (dict "root" .root "of" (merge (dict "alone" true) $engine)) }}
containers:
  - name: {{ ternary "mocker" $engine.engine $mocker | replace "custom" "engine" }}
    image: {{ ternary (include "kvmesh.image" .root) (include "kvmesh.engineImage" (ternary (dict "image" "-") $engine $mocker)) (and $mocker (not $engine.image)) | quote }}
    {{- $run := include "kvmesh.engineArgs" (dict "engine" $engine "name" .name) | fromJson }}
    {{- if and .node (or $engine.multiNode.workerCommand $engine.multiNode.workerArgs) }}
    {{- $run = dict "command" $engine.multiNode.workerCommand "args" $engine.multiNode.workerArgs }}
    {{- else if and (eq $engine.kind "leaderworkerset") (eq $engine.engine "vllm") (eq $engine.multiNode.backend "ray") }}
    {{- if .node }}
    {{- $run = dict "command" (list "sh" "-c" "until ray start --address=\"$LWS_LEADER_ADDRESS:6379\" --block; do sleep 2; done") "args" list }}
    {{- else }}
    {{- $run = dict "command" (list "sh" "-c" "ray start --head --port=6379 && exec \"$0\" \"$@\"") "args" (concat $run.command $run.args) }}
    {{- end }}
    {{- else if and .node (eq $engine.engine "vllm") }}
    {{- $run = dict "command" $run.command "args" (append $run.args "--headless") }}
    {{- end }}
    {{- with $run.command }}
    command:
      {{- range . }}
      - {{ toJson . }}
      {{- end }}
    {{- end }}
    {{- with $run.args }}
    args:
      {{- range . }}
      - {{ toRawJson . }}
      {{- end }}
    {{- end }}
    {{- with $engine.pod.envFrom }}
    envFrom:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- if not $mocker }}
    env:
      - name: POD_IP
        valueFrom: {fieldRef: {fieldPath: status.podIP}}
      {{- with $engine.tokenSecret.name }}
      - name: HF_TOKEN
        valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $engine.tokenSecret.key }}}}
      {{- end }}
      {{- $connector := include "kvmesh.connector" $engine }}
      {{- if and (eq $engine.engine "vllm") (hasPrefix "nixl" $connector) }}
      - {name: VLLM_NIXL_SIDE_CHANNEL_HOST, value: $(POD_IP)}
      - {name: VLLM_NIXL_SIDE_CHANNEL_PORT, value: "{{ int $engine.kvTransfer.sideChannelPort }}"}
      {{- else if and (eq $engine.engine "vllm") (eq $connector "mooncake") }}
      - {name: VLLM_MOONCAKE_BOOTSTRAP_PORT, value: "{{ int $engine.kvTransfer.sideChannelPort }}"}
      {{- end }}
      {{- with $engine.pod.env }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- else }}
    {{- with $engine.pod.env }}
    env:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- end }}
    {{- if not .node }}
    ports:
      - {name: http, containerPort: {{ int $engine.port }}}
      {{- if $engine.kvEvents.enabled }}
      - {name: kv-events, containerPort: {{ int $engine.kvEvents.port }}}
      - {name: kv-replay, containerPort: {{ int $engine.kvEvents.replayPort }}}
      {{- end }}
    lifecycle:
      preStop:
        {{- include "kvmesh.enginePreStop" $engine | nindent 8 }}
    {{- $path := ternary "/ready" "/health" (and (eq $engine.engine "sglang") (not $mocker)) }}
    startupProbe:
      httpGet: {path: {{ $path }}, port: http}
      periodSeconds: 5
      failureThreshold: {{ div (add (int $engine.startupS) 4) 5 | max 1 }}
    readinessProbe:
      httpGet: {path: {{ $path }}, port: http}
      periodSeconds: 5
      timeoutSeconds: 5
    {{- end }}
    {{- $resources := deepCopy $engine.resources }}
    {{- if and (gt (int $engine.gpus) 0) (not $mocker) }}
    {{- $resources = mergeOverwrite (dict "limits" (dict "nvidia.com/gpu" (int $engine.gpus | toString))) $resources }}
    {{- end }}
    {{- if and $mocker (not $resources) }}
    {{- $resources = dict "requests" (dict "cpu" "200m" "memory" "256Mi") "limits" (dict "memory" "1Gi") }}
    {{- end }}
    {{- with $resources }}
    resources:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- if and $mocker (not $engine.pod.securityContext) }}
    securityContext:
      {{- include "kvmesh.containerSecurity" . | nindent 6 }}
    {{- else }}
    {{- with $engine.pod.securityContext }}
    securityContext:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- end }}
    {{- $mounts := ($engine.pod.volumeMounts | default list) }}
    {{- $volumes := ($engine.pod.volumes | default list) }}
    {{- if and $engine.sharedMemory (not $mocker) }}
    {{- $mounts = append $mounts (dict "name" "shared-memory" "mountPath" "/dev/shm") }}
    {{- $volumes = append $volumes (dict "name" "shared-memory" "emptyDir" (dict "medium" "Memory" "sizeLimit" $engine.sharedMemory)) }}
    {{- end }}
    {{- if $trtllm }}
    {{- $mounts = append $mounts (dict "name" "options" "mountPath" "/etc/trtllm" "readOnly" true) }}
    {{- $volumes = append $volumes (dict "name" "options" "configMap" (dict "name" .full)) }}
    {{- end }}
    {{- with $mounts }}
    volumeMounts:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  {{- if $sidecar }}
  {{- include "kvmesh.sidecar" . | nindent 2 }}
  {{- end }}
{{- $more := "" }}
{{- if $sidecar }}{{- $more = include "kvmesh.sidecarVolumes" . | trim }}{{- end }}
{{- if or $volumes $more }}
volumes:
  {{- with $volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with $more }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end -}}
