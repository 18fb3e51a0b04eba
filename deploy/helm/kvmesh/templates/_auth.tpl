{{/* Keys and certificates of a kvmesh container: dict "root" $ "component" router|meta-router|picker|worker.
"kvmesh.auth.env" has entries of env, "kvmesh.auth.mounts" of volumeMounts, "kvmesh.auth.volumes" of volumes. */}}

{{/* Which Secrets the component has, as JSON: [{name, secret, key, variable}]. */}}
{{- define "kvmesh.auth.files" -}}
{{- $auth := .root.Values.auth -}}
{{- $front := or (eq .component "meta-router") (and (eq .component "router") (ne .root.Values.mode "mesh")) -}}
{{- $wanted := list -}}
{{- if ne .component "worker" -}}
{{- if $front -}}
{{- $wanted = append $wanted (dict "name" "api-keys" "of" $auth.apiKeys "variable" "KVMESH_API_KEYS") -}}
{{- if $auth.apiKeys.existingSecret -}}
{{- $session := dict "existingSecret" (include "kvmesh.auth.sessionSecret" .root) "key" $auth.session.key -}}
{{- $wanted = append $wanted (dict "name" "session" "of" $session "variable" "KVMESH_SESSION_SECRET_FILE") -}}
{{- end -}}
{{- end -}}
{{- if ne .component "meta-router" -}}
{{- $wanted = append $wanted (dict "name" "admin-token" "of" $auth.adminToken "variable" "KVMESH_ADMIN_TOKEN_FILE") -}}
{{- end -}}
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

{{/* "true" where the Secret of a NATS key has the hash secret of its bucket, too. */}}
{{- define "kvmesh.auth.hashSecret" -}}
{{- $mesh := and (eq .root.Values.mode "mesh") .root.Values.nats.auth.enabled (ne .component "meta-router") -}}
{{- $hash := .root.Values.auth.hashSecret -}}
{{- if and $mesh $hash.enabled (not $hash.existingSecret) -}}true{{- end -}}
{{- end -}}

{{/* The Secret that seals browsers' logins, the same in every process behind the front door. */}}
{{- define "kvmesh.auth.sessionSecret" -}}
{{- .Values.auth.session.existingSecret | default (printf "%s-session" (include "kvmesh.fullname" .)) -}}
{{- end -}}

{{- define "kvmesh.auth.env" -}}
{{- range include "kvmesh.auth.files" . | fromJsonArray }}
- name: {{ .variable }}
  value: /run/secrets/kvmesh-{{ .name }}/{{ .key }}
{{- end }}
{{- if include "kvmesh.auth.hashSecret" . }}
- {name: KVMESH_HASH_SECRET_FILE, value: /run/secrets/kvmesh/hash.secret}
{{- end }}
{{- if include "kvmesh.auth.https" . }}
- name: KVMESH_TLS_CERT
  value: /run/secrets/kvmesh-tls/tls.crt
- name: KVMESH_TLS_KEY
  value: /run/secrets/kvmesh-tls/tls.key
{{- if .root.Values.auth.tls.clientCaSecret }}
- name: KVMESH_TLS_CLIENT_CA
  value: /run/secrets/kvmesh-client-ca/ca.crt
{{- end }}
{{- end }}
{{- end -}}

{{- define "kvmesh.auth.mounts" -}}
{{- range include "kvmesh.auth.files" . | fromJsonArray }}
- name: {{ .name }}
  mountPath: /run/secrets/kvmesh-{{ .name }}
  readOnly: true
{{- end }}
{{- if include "kvmesh.auth.https" . }}
- {name: tls, mountPath: /run/secrets/kvmesh-tls, readOnly: true}
{{- if .root.Values.auth.tls.clientCaSecret }}
- {name: client-ca, mountPath: /run/secrets/kvmesh-client-ca, readOnly: true}
{{- end }}
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
{{- if include "kvmesh.auth.https" . }}
- name: tls
  secret:
    secretName: {{ include "kvmesh.auth.tlsSecret" .root }}
    defaultMode: 0440
    items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
{{- with .root.Values.auth.tls.clientCaSecret }}
- name: client-ca
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- end }}
{{- end -}}

{{/* "true" for the front door where it speaks HTTPS. */}}
{{- define "kvmesh.auth.https" -}}
{{- $front := or (eq .component "meta-router") (and (eq .component "router") (ne .root.Values.mode "mesh")) -}}
{{- if and $front .root.Values.auth.tls.enabled -}}true{{- end -}}
{{- end -}}

{{/* "true" where the front door has a port of its own for metrics and probes. */}}
{{- define "kvmesh.auth.adminPort" -}}
{{- if eq .component "meta-router" -}}
{{- if .root.Values.metaRouter.adminPort -}}true{{- end -}}
{{- else if and (eq .component "router") (ne .root.Values.mode "mesh") -}}
{{- range include "kvmesh.buckets" .root | fromJson -}}{{- if .adminPort -}}true{{- end -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* The Secret with the front door's certificate. */}}
{{- define "kvmesh.auth.tlsSecret" -}}
{{- $tls := .Values.auth.tls -}}
{{- if $tls.existingSecret -}}{{ $tls.existingSecret }}
{{- else if $tls.certManager.enabled -}}{{ include "kvmesh.frontName" . }}-tls
{{- else -}}
{{- fail "auth.tls: name existingSecret (a Secret with tls.crt and tls.key), or enable certManager" -}}
{{- end -}}
{{- end -}}

{{/* HTTP or HTTPS, for probes of a component. */}}
{{- define "kvmesh.auth.scheme" -}}
{{- if and (include "kvmesh.auth.https" .) (not (include "kvmesh.auth.adminPort" .)) -}}HTTPS{{- else -}}HTTP{{- end -}}
{{- end -}}

{{/* http or https, for the URL of a component. */}}
{{- define "kvmesh.auth.urlScheme" -}}
{{- if include "kvmesh.auth.https" . -}}https{{- else -}}http{{- end -}}
{{- end -}}

{{/* The port of a component's probes: with TLS the admin port, since kubelets show no certificate. */}}
{{- define "kvmesh.auth.probePort" -}}
{{- if and (include "kvmesh.auth.https" .) (include "kvmesh.auth.adminPort" .) -}}admin
{{- else if and (include "kvmesh.auth.https" .) .root.Values.auth.tls.clientCaSecret -}}
{{- fail "auth.tls.clientCaSecret: enable adminPort, too: kubelets have no certificate to show at the front door" -}}
{{- else -}}http{{- end -}}
{{- end -}}
