{{/* What sets the replicas of routers and meta-routers: dict root, component, [bucket], name, of (autoscaling). */}}
{{- define "kvmesh.routerScaler" -}}
{{- if .of.enabled }}
---
{{- if eq .of.kind "hpa" }}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "kvmesh.metadata" . | nindent 2 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ .name }}}
  minReplicas: {{ max 1 (int .of.min) }}
  maxReplicas: {{ int .of.max }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target: {type: Utilization, averageUtilization: {{ int .of.targetCpu }}}
  behavior:
    # Each replica holds a whole index: slow to leave, so that a lull does not throw it away.
    scaleDown: {stabilizationWindowSeconds: 600}
{{- else }}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  {{- include "kvmesh.metadata" . | nindent 2 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ .name }}}
  minReplicaCount: {{ max 1 (int .of.min) }}
  maxReplicaCount: {{ int .of.max }}
  advanced:
    horizontalPodAutoscalerConfig:
      behavior:
        scaleDown: {stabilizationWindowSeconds: 600}
  triggers:
    {{- if .of.triggers }}
    {{- toYaml .of.triggers | nindent 4 }}
    {{- else }}
    - type: cpu
      metricType: Utilization
      metadata: {value: "{{ int .of.targetCpu }}"}
    {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* What sets the number of engines, from what routers want: dict root, component, bucket, name, of, target. */}}
{{- define "kvmesh.engineScaler" -}}
{{- if .of.enabled }}
---
{{- if eq .of.kind "hpa" }}
# As many engines as the routers want: the metric divided by 1, rounded up.
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "kvmesh.metadata" . | nindent 2 }}
spec:
  scaleTargetRef: {{ toJson .target }}
  minReplicas: {{ max 1 (int .of.min) }}
  maxReplicas: {{ int .of.max }}
  metrics:
    - type: External
      external:
        metric:
          name: kvmesh_wanted_workers
          selector: {matchLabels: {bucket: {{ .bucket }}}}
        target: {type: AverageValue, averageValue: "1"}
  behavior:
    {{- include "kvmesh.engineScalerBehavior" . | nindent 4 }}
{{- else }}
# KEDA divides what the query gives by the threshold and rounds up: 1 makes it the number of engines itself. Engines
# take minutes to start, so the query is a mean of two minutes.
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  {{- include "kvmesh.metadata" . | nindent 2 }}
spec:
  scaleTargetRef: {{ toJson .target }}
  pollingInterval: 15
  minReplicaCount: {{ int .of.min }}
  maxReplicaCount: {{ int .of.max }}
  # Where Prometheus does not answer.
  fallback: {failureThreshold: 4, replicas: {{ int .of.fallback }}}
  advanced:
    horizontalPodAutoscalerConfig:
      behavior:
        {{- include "kvmesh.engineScalerBehavior" . | nindent 8 }}
  triggers:
    - type: prometheus
      metricType: AverageValue
      metadata:
        serverAddress: {{ .of.prometheusUrl }}
        threshold: "1"
        ignoreNullValues: "false"
        query: >-
          avg_over_time((max(kvmesh_wanted_workers{bucket="{{ .bucket }}",cause!="held"})
          + sum(kvmesh_wanted_workers{bucket="{{ .bucket }}",cause="held"}))[2m:15s])
{{- end }}
{{- end }}
{{- end -}}

{{- define "kvmesh.engineScalerBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies: [{type: Percent, value: 100, periodSeconds: 120}]
# Each engine that leaves takes its cache with it.
scaleDown:
  stabilizationWindowSeconds: 900
  policies: [{type: Pods, value: 1, periodSeconds: 300}]
{{- end -}}

{{/* What marks a bucket's pods with what losing each would cost, "router", "picker" where there are no routers, or "":
dict root, bucket (MERGED). */}}
{{- define "kvmesh.marks" -}}
{{- if .root.Values.markPods.enabled -}}
{{- $several := or (gt (int .bucket.replicas) 1) .bucket.autoscaling.enabled -}}
{{- if and (ne .root.Values.mode "mesh") $several -}}
{{- fail "markPods: in mode standalone each router knows its own requests alone, and each would mark the pods: one replica, or mode mesh" -}}
{{- end -}}
{{- if or (gt (int .bucket.replicas) 0) .bucket.autoscaling.enabled -}}router
{{- else if .bucket.picker.replicas -}}picker
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Service accounts that mark pods, as a JSON list. */}}
{{- define "kvmesh.markers" -}}
{{- $names := dict "router" (include "kvmesh.markerName" .) "picker" (include "kvmesh.pickerAccount" .) "" "" -}}
{{- $out := list -}}
{{- range $bucket := include "kvmesh.buckets" . | fromJson -}}
{{- $out = append $out (get $names (include "kvmesh.marks" (dict "root" $ "bucket" $bucket))) -}}
{{- end -}}
{{- toJson (without $out "" | uniq | sortAlpha) -}}
{{- end -}}
