{{/* Engines that routers follow themselves, without sidecars: dict "root" $ "name" BUCKET "bucket" MERGED. */}}

{{/* "true" where routers and pickers follow engines themselves. */}}
{{- define "kvmesh.alone" -}}
{{- if or (ne .Values.mode "mesh") .Values.discovery.enabled -}}true{{- end -}}
{{- end -}}

{{/* How a role and a connector are written behind a --worker. */}}
{{- define "kvmesh.workerOptions" -}}
{{- if ne .role "both" -}},role={{ .role }}{{- end -}}
{{- with include "kvmesh.connector" . -}},connector={{ . }}{{- end -}}
{{- with include "kvmesh.bootstrapPort" . -}},bootstrap={{ . }}{{- end -}}
{{- end -}}

{{/* Endpoints of an engine of kind existing, as a JSON list: dict "engine" ENGINE "name" NAME. */}}
{{- define "kvmesh.existingEndpoints" -}}
{{- $engine := .engine -}}
{{- $all := $engine.existing.endpoints -}}
{{- range list $engine.existing.statefulSet -}}
{{- if .name -}}
{{- $of := . -}}
{{- range $number := until (int .replicas) -}}
{{- $pod := printf "%s-%d" $of.name $number -}}
{{- $host := printf "%s.%s" $pod ($of.service | default $of.name) -}}
{{- $one := dict "name" $pod "url" (printf "http://%s:%d" $host (int $engine.port)) -}}
{{- if $engine.kvEvents.enabled -}}
{{- $_ := set $one "kvEvents" (printf "tcp://%s:%d" $host (int $engine.kvEvents.port)) -}}
{{- $_ := set $one "kvReplay" (printf "tcp://%s:%d" $host (int $engine.kvEvents.replayPort)) -}}
{{- end -}}
{{- $all = append $all $one -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $all -}}
{{- end -}}

{{/* Values of --worker. */}}
{{- define "kvmesh.staticWorkers" -}}
{{- $out := .bucket.workers -}}
{{- $root := .root -}}
{{- $bucket := .name -}}
{{- if include "kvmesh.alone" .root -}}
{{- range $name, $engine := include "kvmesh.engines" .root | fromJson -}}
{{- if eq $engine.bucket $bucket -}}
{{- $options := include "kvmesh.workerOptions" $engine -}}
{{- if eq $engine.kind "existing" -}}
{{- range include "kvmesh.existingEndpoints" (dict "engine" $engine) | fromJsonArray -}}
{{- $events := ternary (printf ",zmq=%s" .kvEvents) (ternary "" ",zmq=off" $engine.kvEvents.enabled) (hasKey . "kvEvents") -}}
{{- $replay := ternary (printf ",replay=%s" .kvReplay) "" (hasKey . "kvReplay") -}}
{{- $out = append $out (printf "%s=%s%s%s%s" .name .url $events $replay $options) -}}
{{- end -}}
{{- else if eq $engine.kind "statefulset" -}}
{{- $full := include "kvmesh.engineName" (dict "root" $root "engine" $name) -}}
{{- range $number := until (int $engine.replicas) -}}
{{- $out = append $out (printf "%s-%d=http://%s-%d.%s:%d%s" $full $number $full $number $full (int $engine.port) $options) -}}
{{- end -}}
{{- else if ne $engine.role "both" -}}
{{- fail (printf "engines.%s: role %s needs kind statefulset or existing where routers follow engines themselves: a Service does not tell roles" $name $engine.role) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{/* Values of --discover. */}}
{{- define "kvmesh.sources" -}}
{{- $out := list -}}
{{- $root := .root -}}
{{- $bucket := .name -}}
{{- $buckets := include "kvmesh.buckets" .root | fromJson -}}
{{- if include "kvmesh.alone" .root -}}
{{- range $name, $engine := include "kvmesh.engines" .root | fromJson -}}
{{- if eq $engine.bucket $bucket -}}
{{- if has $engine.kind (list "deployment" "leaderworkerset" "mocker") -}}
{{- $out = append $out (printf "kubernetes://%s/%s:%d" $root.Release.Namespace (include "kvmesh.engineName" (dict "root" $root "engine" $name)) (int $engine.port)) -}}
{{- else if and (eq $engine.kind "existing") $engine.existing.service -}}
{{- $named := splitList "/" $engine.existing.service -}}
{{- $namespace := ternary (first $named) $root.Release.Namespace (gt (len $named) 1) -}}
{{- $out = append $out (printf "kubernetes://%s/%s:%d" $namespace (last $named) (int $engine.port)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range .root.Values.discovery.kubernetes -}}
{{- if not .bucket -}}
{{- if ne (len $buckets) 1 -}}{{- fail (printf "discovery.kubernetes: service %s: name its bucket" .service) -}}{{- end -}}
{{- else if not (hasKey $buckets .bucket) -}}
{{- fail (printf "discovery.kubernetes: service %s: there is no bucket %q, only: %s" .service .bucket (keys $buckets | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if eq ($bucket) (.bucket | default $bucket) -}}
{{- $port := ternary "" (printf ":%s" (include "kvmesh.settingValue" (.port | default ""))) (not .port) -}}
{{- $out = append $out (printf "kubernetes://%s/%s%s" (.namespace | default $root.Release.Namespace) .service $port) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson ($out | uniq) -}}
{{- end -}}

{{/* "true" for a bucket whose routers list endpoints at the API server. */}}
{{- define "kvmesh.discovers" -}}
{{- if include "kvmesh.sources" . | fromJsonArray -}}true{{- end -}}
{{- end -}}

{{/* Namespaces whose EndpointSlices are read, as a JSON list. */}}
{{- define "kvmesh.discoveryNamespaces" -}}
{{- $out := list -}}
{{- range $name, $bucket := include "kvmesh.buckets" . | fromJson -}}
{{- range include "kvmesh.sources" (dict "root" $ "name" $name "bucket" $bucket) | fromJsonArray -}}
{{- $out = append $out (. | trimPrefix "kubernetes://" | splitList "/" | first) -}}
{{- end -}}
{{- end -}}
{{- toJson ($out | uniq | sortAlpha) -}}
{{- end -}}
