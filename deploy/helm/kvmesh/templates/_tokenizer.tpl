{{/* Tokenizer files of routers and pickers: dict "root" $ "name" BUCKET "bucket" MERGED. */}}

{{/* The checked tokenizer as JSON, with the engines' model where none is named. */}}
{{- define "kvmesh.tokenizer.checked" -}}
{{- $tokenizer := include "kvmesh.tokenizer" . | fromJson -}}
{{- $place := printf "tokenizer of bucket %s" .name -}}
{{- if eq $tokenizer.source "volume" -}}
{{- if not $tokenizer.volume -}}{{- fail (printf "%s: source volume needs `volume`, e.g. persistentVolumeClaim: {claimName: models}" $place) -}}{{- end -}}
{{- else if eq $tokenizer.source "image" -}}
{{- if not $tokenizer.image -}}{{- fail (printf "%s: source image needs `image`" $place) -}}{{- end -}}
{{- else if eq $tokenizer.source "configMap" -}}
{{- if not $tokenizer.configMap -}}{{- fail (printf "%s: source configMap needs `configMap`" $place) -}}{{- end -}}
{{- else if eq $tokenizer.source "init" -}}
{{- if not $tokenizer.init.model -}}
{{- $name := .name -}}
{{- range include "kvmesh.engines" .root | fromJson -}}
{{- if and (eq .bucket $name) .model (not $tokenizer.init.model) -}}{{- $_ := set $tokenizer.init "model" .model -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $tokenizer.init.model -}}{{- fail (printf "%s: source init needs `init.model`, e.g. Qwen/Qwen2.5-7B-Instruct" $place) -}}{{- end -}}
{{- end -}}
{{- toJson $tokenizer -}}
{{- end -}}

{{- define "kvmesh.tokenizer.env" -}}
{{- $tokenizer := include "kvmesh.tokenizer.checked" . | fromJson -}}
{{- if ne $tokenizer.source "none" }}
- name: KVMESH_TOKENIZER
  value: {{ printf "%s/%s" "/models" $tokenizer.directory | trimSuffix "/" }}
{{- end }}
{{- end -}}

{{- define "kvmesh.tokenizer.mounts" -}}
{{- $tokenizer := include "kvmesh.tokenizer.checked" . | fromJson -}}
{{- if ne $tokenizer.source "none" }}
- {name: tokenizer, mountPath: /models, readOnly: true}
{{- end }}
{{- end -}}

{{- define "kvmesh.tokenizer.volumes" -}}
{{- $tokenizer := include "kvmesh.tokenizer.checked" . | fromJson -}}
{{- if eq $tokenizer.source "volume" }}
- name: tokenizer
  {{- toYaml $tokenizer.volume | nindent 2 }}
{{- else if eq $tokenizer.source "image" }}
- name: tokenizer
  image: {reference: {{ $tokenizer.image | quote }}, pullPolicy: {{ .root.Values.image.pullPolicy }}}
{{- else if eq $tokenizer.source "configMap" }}
- name: tokenizer
  configMap: {name: {{ $tokenizer.configMap }}}
{{- else if eq $tokenizer.source "init" }}
- name: tokenizer
  emptyDir: {sizeLimit: 256Mi}
{{- with $tokenizer.init.tokenSecret.name }}
- name: hub-token
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items: [{key: {{ $tokenizer.init.tokenSecret.key }}, path: token}]
{{- end }}
{{- end }}
{{- end -}}

{{/* The init container that downloads the files; a pod that cannot reach the hub does not start. */}}
{{- define "kvmesh.tokenizer.init" -}}
{{- $tokenizer := include "kvmesh.tokenizer.checked" . | fromJson -}}
{{- if eq $tokenizer.source "init" }}
{{- $init := $tokenizer.init }}
- name: tokenizer
  image: {{ include "kvmesh.image" .root | quote }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command:
    - python3
    - -c
    - |
      {{- .root.Files.Get "files/fetch_tokenizer.py" | nindent 6 }}
  args:
    - {{ printf "%s/%s/resolve/%s" ($init.endpoint | trimSuffix "/") $init.model $init.revision | quote }}
    - {{ printf "%s/%s" "/models" $tokenizer.directory | trimSuffix "/" | quote }}
    # The first must be there; others that the model does not have are skipped.
    - tokenizer.json
    - tokenizer_config.json
    - config.json
    - generation_config.json
    - special_tokens_map.json
    - chat_template.jinja
    - chat_template.json
  {{- with $init.env }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  resources:
    requests: {cpu: 50m, memory: 64Mi}
    limits: {memory: 256Mi}
  securityContext:
    {{- include "kvmesh.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: tokenizer, mountPath: /models}
    {{- if $init.tokenSecret.name }}
    - {name: hub-token, mountPath: /run/secrets/kvmesh-hub, readOnly: true}
    {{- end }}
{{- end }}
{{- end -}}
