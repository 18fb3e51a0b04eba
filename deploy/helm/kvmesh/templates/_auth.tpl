{{/* Keys and certificates of a kvmesh container: dict "root" $ "component" router|meta-router|picker|worker.
"kvmesh.auth.env" has entries of env, "kvmesh.auth.mounts" of volumeMounts, "kvmesh.auth.volumes" of volumes. */}}

{{/* Which Secrets the component has, as JSON: [{name, secret, key, variable}]. */}}
{{- define "kvmesh.auth.files" -}}
{{- $auth := .root.Values.auth -}}
{{- $front := or (eq .component "meta-router") (ne .root.Values.mode "mesh") -}}
{{- $wanted := list -}}
{{- if ne .component "worker" -}}
{{- if $front -}}
{{- $wanted = append $wanted (dict "name" "api-keys" "of" $auth.apiKeys "variable" "KVMESH_API_KEYS") -}}
{{- end -}}
{{- $wanted = append $wanted (dict "name" "admin-token" "of" $auth.adminToken "variable" "KVMESH_ADMIN_TOKEN_FILE") -}}
{{- $wanted = append $wanted (dict "name" "upstream-key" "of" $auth.upstreamKey "variable" "KVMESH_UPSTREAM_KEY_FILE") -}}
{{- $wanted = append $wanted (dict "name" "tenant-secret" "of" $auth.tenantSecret "variable" "KVMESH_TENANT_SECRET_FILE") -}}
{{- end -}}
{{- if ne .component "meta-router" -}}
{{- $wanted = append $wanted (dict "name" "hash-secret" "of" $auth.hashSecret "variable" "KVMESH_HASH_SECRET_FILE") -}}
{{- end -}}
{{- $out := list -}}
{{- range $wanted -}}
{{- if .of.existingSecret -}}
{{- $out = append $out (dict "name" .name "secret" .of.existingSecret "key" .of.key "variable" .variable) -}}
{{- end -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{- define "kvmesh.auth.env" -}}
{{- range include "kvmesh.auth.files" . | fromJsonArray }}
- name: {{ .variable }}
  value: /run/secrets/kvmesh-{{ .name }}/{{ .key }}
{{- end }}
{{- end -}}

{{- define "kvmesh.auth.mounts" -}}
{{- range include "kvmesh.auth.files" . | fromJsonArray }}
- name: {{ .name }}
  mountPath: /run/secrets/kvmesh-{{ .name }}
  readOnly: true
{{- end }}
{{- end -}}

{{- define "kvmesh.auth.volumes" -}}
{{- range include "kvmesh.auth.files" . | fromJsonArray }}
- name: {{ .name }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
    items: [{key: {{ .key }}, path: {{ .key }}}]
{{- end }}
{{- end -}}

{{/* http or https, for probes of a component. */}}
{{- define "kvmesh.auth.scheme" -}}HTTP{{- end -}}

{{/* The port of a component's probes. */}}
{{- define "kvmesh.auth.probePort" -}}http{{- end -}}
