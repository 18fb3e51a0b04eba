{{/* Names of a Service within the cluster, spaces between them: dict root, service. */}}
{{- define "kvmesh.hostNames" -}}
{{- $whole := printf "%s.%s.svc" .service .root.Release.Namespace -}}
{{ .service }} {{ .service }}.{{ .root.Release.Namespace }} {{ $whole }} {{ $whole }}.cluster.local
{{- end -}}

{{/* A Certificate of cert-manager, written to the Secret of its name: dict root, component, name, hosts. */}}
{{- define "kvmesh.certificate" }}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  {{- include "kvmesh.metadata" . | nindent 2 }}
spec:
  secretName: {{ .name }}
  duration: 2160h
  privateKey: {algorithm: ECDSA, size: 256, rotationPolicy: Always}
  usages: [digital signature, key encipherment, server auth]
  dnsNames:
    {{- range .hosts }}
    - {{ . | quote }}
    {{- end }}
  issuerRef:
    group: cert-manager.io
    kind: {{ .root.Values.auth.tls.certManager.issuerRef.kind }}
    name: {{ .root.Values.auth.tls.certManager.issuerRef.name }}
{{- end -}}

{{/* The Secret with the certificate that pickers of a bucket show gateways: dict root, bucket NAME, picker. */}}
{{- define "kvmesh.pickerSecret" -}}
{{- if .picker.tls.existingSecret -}}{{ .picker.tls.existingSecret }}
{{- else if .root.Values.auth.tls.certManager.enabled -}}{{ include "kvmesh.pickerName" . }}-tls
{{- else -}}kvmesh-picker-tls-{{ .bucket }}
{{- end -}}
{{- end -}}

{{- define "kvmesh.pickerAccount" -}}{{ include "kvmesh.prefix" . }}picker{{- end -}}
{{- define "kvmesh.poolName" -}}{{ include "kvmesh.prefix" .root }}{{ .bucket }}{{- end -}}

{{/* Buckets with pickers, spaces between them. */}}
{{- define "kvmesh.pickerBuckets" -}}
{{- $out := list -}}
{{- range $name, $bucket := include "kvmesh.buckets" . | fromJson -}}
{{- if $bucket.picker.replicas -}}{{- $out = append $out $name -}}{{- end -}}
{{- end -}}
{{- $out | sortAlpha | join " " -}}
{{- end -}}

{{/* A PodMonitor of a component: dict root, component, of (its name), port, [relabelings]. */}}
{{- define "kvmesh.podMonitor" }}
---
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  {{- include "kvmesh.metadata" (dict "root" .root "component" .component "name" (printf "%s%s" (include "kvmesh.prefix" .root) .of) "extraLabels" .root.Values.monitoring.serviceMonitor.labels) | nindent 2 }}
spec:
  selector:
    matchLabels:
      {{- include "kvmesh.selectorLabels" (dict "root" .root "component" .component) | nindent 6 }}
  podMetricsEndpoints:
    - port: {{ .port }}
      path: /metrics
      interval: {{ .root.Values.monitoring.serviceMonitor.interval }}
      {{- with .relabelings }}
      relabelings:
        {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end -}}
