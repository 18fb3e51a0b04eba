{{/* What the chart knows of each kind of engine. `engine` is a merged engine of "kvmesh.engines". */}}

{{- define "kvmesh.engineImage" -}}
{{- if .image -}}{{ .image }}
{{- else if eq .engine "vllm" -}}vllm/vllm-openai:v0.32.0
{{- else if eq .engine "sglang" -}}lmsysorg/sglang:v0.5.21
{{- else if eq .engine "tensorrt-llm" -}}nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc29
{{- else -}}{{- fail "engines: engine custom needs an image" -}}
{{- end -}}
{{- end -}}

{{/* The connector by kvmesh's name (docs/workloads/prefill-decode.md); "" is the engine's usual one. */}}
{{- define "kvmesh.connector" -}}
{{- if .kvTransfer.connector -}}{{ .kvTransfer.connector }}
{{- else if and (ne .role "both") (eq .engine "vllm") -}}nixl
{{- end -}}
{{- end -}}

{{/* Where decode engines meet a prefill engine, for connectors that need it named. */}}
{{- define "kvmesh.bootstrapPort" -}}
{{- $connector := include "kvmesh.connector" . -}}
{{- $named := or (eq $connector "mooncake") (eq $connector "bootstrap") (and (eq .engine "sglang") (ne .kind "mocker")) -}}
{{- if or (and $named (eq .role "prefill")) (and (eq $connector "p2p-nccl") (ne .role "both")) -}}
{{ int .kvTransfer.sideChannelPort }}
{{- end -}}
{{- end -}}

{{- define "kvmesh.blockSize" -}}
{{- if not (kindIs "invalid" .blockSize) -}}{{ int .blockSize }}
{{- else if eq .kind "mocker" -}}
{{- else if eq .engine "sglang" -}}16
{{- else if eq .engine "tensorrt-llm" -}}32
{{- end -}}
{{- end -}}

{{/* command and arguments as JSON: dict "engine" ENGINE "name" NAME. */}}
{{- define "kvmesh.engineArgs" -}}
{{- $engine := .engine -}}
{{- $port := int $engine.port -}}
{{- $size := include "kvmesh.blockSize" $engine -}}
{{- $events := dict "publisher" "zmq" "endpoint" (printf "tcp://*:%d" (int $engine.kvEvents.port)) "replay_endpoint" (printf "tcp://*:%d" (int $engine.kvEvents.replayPort)) -}}
{{- $connector := include "kvmesh.connector" $engine -}}
{{- $multi := eq $engine.kind "leaderworkerset" -}}
{{- $command := list -}}
{{- $args := list -}}
{{- if eq $engine.kind "mocker" -}}
{{- $args = list "mocker" "--http-host" "0.0.0.0" "--http-port" (toString $port) "--kv-events-port" (toString (int $engine.kvEvents.port)) "--kv-replay-port" (toString (int $engine.kvEvents.replayPort)) -}}
{{- with $engine.model -}}{{- $args = concat $args (list "--model" .) -}}{{- end -}}
{{- with $size -}}{{- $args = concat $args (list "--block-size" .) -}}{{- end -}}
{{- if ne $engine.role "both" -}}{{- $args = concat $args (list "--role" $engine.role) -}}{{- end -}}
{{- with $connector -}}{{- $args = concat $args (list "--kv-connector" .) -}}{{- end -}}
{{- with include "kvmesh.bootstrapPort" $engine -}}{{- $args = concat $args (list "--bootstrap-port" .) -}}{{- end -}}
{{- else if ne $engine.engine "custom" -}}
{{- if not $engine.model -}}{{- fail (printf "engines.%s.model: name the model, e.g. Qwen/Qwen2.5-7B-Instruct" .name) -}}{{- end -}}
{{- if eq $engine.engine "vllm" -}}
{{- $command = list "vllm" "serve" -}}
{{- $args = list $engine.model "--host=0.0.0.0" (printf "--port=%d" $port) "--enable-prefix-caching" "--enable-prompt-tokens-details" -}}
{{- with $size -}}{{- $args = append $args (printf "--block-size=%s" .) -}}{{- end -}}
{{- if $engine.kvEvents.enabled -}}
{{- $args = concat $args (list "--kv-events-config" (toJson (merge (dict "enable_kv_cache_events" true) $events))) -}}
{{- end -}}
{{- $classes := dict "nixl" "NixlConnector" "nixl-push" "NixlPushConnector" "mooncake" "MooncakeConnector" "shared" "LMCacheConnectorV1" -}}
{{- if hasKey $classes $connector -}}
{{- $args = concat $args (list "--kv-transfer-config" (toJson (dict "kv_connector" (get $classes $connector) "kv_role" "kv_both"))) -}}
{{- end -}}
{{- if $multi -}}
{{- if eq $engine.multiNode.backend "ray" -}}{{- $args = append $args "--distributed-executor-backend=ray" -}}
{{- else -}}{{- $args = concat $args (list "--nnodes=$(LWS_GROUP_SIZE)" "--node-rank=$(LWS_WORKER_INDEX)" "--master-addr=$(LWS_LEADER_ADDRESS)") -}}
{{- end -}}
{{- end -}}
{{- else if eq $engine.engine "sglang" -}}
{{- $command = list "python3" "-m" "sglang.launch_server" -}}
{{- $args = list (printf "--model-path=%s" $engine.model) "--host=0.0.0.0" (printf "--port=%d" $port) (printf "--page-size=%s" $size) "--enable-cache-report" "--enable-metrics" "--load-publish-endpoint=auto" -}}
{{- if $engine.kvEvents.enabled -}}{{- $args = concat $args (list "--kv-events-config" (toJson $events)) -}}{{- end -}}
{{- if ne $engine.role "both" -}}{{- $args = append $args (printf "--disaggregation-mode=%s" $engine.role) -}}{{- end -}}
{{- with include "kvmesh.bootstrapPort" $engine -}}{{- $args = append $args (printf "--disaggregation-bootstrap-port=%s" .) -}}{{- end -}}
{{- if $multi -}}{{- $args = concat $args (list "--nnodes=$(LWS_GROUP_SIZE)" "--node-rank=$(LWS_WORKER_INDEX)" "--dist-init-addr=$(LWS_LEADER_ADDRESS):20000") -}}{{- end -}}
{{- else -}}
{{- if ne $engine.role "both" -}}{{- fail (printf "engines.%s.role: kvmesh has no handshake for TensorRT-LLM's prefill and decode" .name) -}}{{- end -}}
{{- if $multi -}}{{- fail (printf "engines.%s: tensorrt-llm over several nodes needs MPI: use kind existing" .name) -}}{{- end -}}
{{- $command = list "trtllm-serve" -}}
{{- $args = list $engine.model "--host=0.0.0.0" (printf "--port=%d" $port) "--backend=pytorch" "--extra_llm_api_options=/etc/trtllm/trtllm.yaml" -}}
{{- end -}}
{{- end -}}
{{- dict "command" ($engine.command | default $command) "args" (concat $args $engine.args) | toJson -}}
{{- end -}}

{{/* How an engine ends its open streams before SIGTERM; the sidecar, which gets SIGTERM at once, tells the routers to
send nothing more. */}}
{{- define "kvmesh.enginePreStop" -}}
{{- if and (eq .engine "vllm") (ne .kind "mocker") -}}
# vLLM ends its streams when it gets SIGTERM: it may first finish what it has.
exec:
  command:
    - python3
    - -c
    - |
      import re, time, urllib.request
      end = time.monotonic() + {{ int .drainS }}
      time.sleep(3)
      while time.monotonic() < end:
          page = urllib.request.urlopen("http://127.0.0.1:{{ int .port }}/metrics", timeout=5)
          busy = r"^vllm:num_requests_(?:running|waiting)\{.*\} [1-9]"
          if not re.search(busy, page.read().decode(), re.M):
              break
          time.sleep(1)
{{- else if and (eq .engine "tensorrt-llm") (ne .kind "mocker") -}}
# It does not tell how many requests are open: they have this long.
exec: {command: [sleep, "{{ int .drainS }}"]}
{{- else -}}
# SIGTERM lets open requests end; until routers know, new ones may come.
exec: {command: [sleep, "3"]}
{{- end -}}
{{- end -}}

{{- define "kvmesh.engineSelector" -}}
app.kubernetes.io/name: kvmesh-engine
app.kubernetes.io/instance: {{ .root.Release.Name }}
kvmesh/engine-name: {{ .name }}
{{- end -}}

{{/* Labels of the pods that serve; those of further nodes lack kvmesh/engine, nobody sends them requests. */}}
{{- define "kvmesh.enginePodMetadata" -}}
labels:
  {{- include "kvmesh.engineSelector" . | nindent 2 }}
  app.kubernetes.io/part-of: kvmesh
  kvmesh/bucket: {{ .engine.bucket }}
  {{- if .node }}
  kvmesh/engine-node: "true"
  {{- else }}
  kvmesh/engine: "true"
  {{- end }}
  {{- if ne .engine.role "both" }}
  kvmesh/role: {{ .engine.role }}
  # Pickers and llm-d read it.
  llm-d.ai/role: {{ .engine.role }}
  {{- end }}
  {{- if and (not .node) (include "kvmesh.hasSidecar" .) }}
  kvmesh/nats-client: "true"
  {{- end }}
  {{- with merge (dict) (.engine.pod.labels | default dict) .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $annotations := merge (dict) (.engine.pod.annotations | default dict) .root.Values.commonAnnotations }}
{{- /* No checksum of settings: an engine would lose its cache for a setting of routers. */}}
{{- if and (include "kvmesh.alone" .root) .engine.kvEvents.enabled (ne .engine.engine "sglang") }}
{{- $_ := set $annotations "kvmesh/worker-options" (printf "zmq=tcp://{ip}:%d,replay=tcp://{ip}:%d" (int .engine.kvEvents.port) (int .engine.kvEvents.replayPort)) }}
{{- end }}
{{- if and (eq .engine.engine "tensorrt-llm") (ne .engine.kind "mocker") }}
{{- $_ := set $annotations "kvmesh/options" (include "kvmesh.trtllmOptions" .engine | sha256sum | trunc 16) }}
{{- end }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* "true" where an engine's pods have the sidecar: dict root, engine. */}}
{{- define "kvmesh.hasSidecar" -}}
{{- if and .engine.sidecar.enabled (not (include "kvmesh.alone" .root)) -}}true{{- end -}}
{{- end -}}

{{/* Options of trtllm-serve. */}}
{{- define "kvmesh.trtllmOptions" -}}
kv_cache_config:
  enable_block_reuse: true
  tokens_per_block: {{ include "kvmesh.blockSize" . }}
  {{- if .kvEvents.enabled }}
  # Streaming events are of this manager; neither pipeline nor context parallelism has them.
  use_kv_cache_manager_v2: true
  kv_events_config:
    enable_kv_cache_events: true
    publisher: zmq
    endpoint: tcp://*:{{ int .kvEvents.port }}
    replay_endpoint: tcp://*:{{ int .kvEvents.replayPort }}
  {{- end }}
{{- end -}}
