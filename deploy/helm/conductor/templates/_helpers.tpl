{{- define "conductor.name" -}}
{{- if eq .Release.Name "conductor" }}conductor{{ else }}{{ printf "%s-conductor" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "conductor.selector" -}}
app.kubernetes.io/name: conductor
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "conductor.labels" -}}
{{ include "conductor.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Not those of the selector: the pod of helm test is no server. */}}
{{- define "conductor.testLabels" -}}
app.kubernetes.io/name: conductor-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "conductor.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "conductor.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "conductor.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{/* Combinations of values that would install something that answers wrongly, or lets strangers in. */}}
{{- define "conductor.refuse" -}}
{{- if and (gt (int .Values.replicas) 1) (not (include "conductor.store" .)) (not .Values.replicasWithoutStore) }}
{{- fail (printf "replicas is %d, but the servers share no store: an engine that is registered at one of them is missing in the answers of the others. Set valkey.enabled, or store.url, or replicas to 1. If every engine is under sources, set replicasWithoutStore; then nobody can register engines over HTTP without a token." (int .Values.replicas)) }}
{{- end }}
{{- if .Values.ingress.enabled }}
{{- if not .Values.ingress.hosts }}{{ fail "ingress.enabled needs ingress.hosts: the names that clients ask for" }}{{ end }}
{{- if not .Values.auth.existingSecret }}
{{- fail "ingress.enabled needs auth.existingSecret: without credentials, everyone who reaches the ingress may ask, and where /register is among ingress.paths, may let the server connect to any address" }}
{{- end }}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.ingressFrom) }}
{{- fail "ingress.enabled needs networkPolicy.ingressFrom: where the pods of your ingress controller are, such as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress-nginx}}}]" }}
{{- end }}
{{- if .Values.tls.requireClientCert }}{{ fail "ingress.enabled and tls.requireClientCert exclude each other: the ingress controller would have to show a certificate for every client" }}{{ end }}
{{- end }}
{{- if and .Values.tls.requireClientCert (not .Values.tls.existingSecret) }}{{ fail "tls.requireClientCert needs tls.existingSecret" }}{{ end }}
{{- end }}

{{- define "conductor.scheme" -}}{{ if .Values.tls.existingSecret }}https{{ else }}http{{ end }}{{- end }}

{{/* The URL of the store, empty for none. */}}
{{- define "conductor.store" -}}
{{- if and .Values.valkey.enabled .Values.store.url }}{{ fail "store.url and valkey.enabled exclude each other" }}{{ end }}
{{- if .Values.valkey.enabled }}redis://{{ include "conductor.name" . }}-valkey.{{ .Release.Namespace }}.svc:6379{{ else }}{{ .Values.store.url }}{{ end }}
{{- end }}

{{/* The settings of the server: those of the values over those of the chart. */}}
{{- define "conductor.config" -}}
{{- $peers := list }}
{{- range $i := until (int .Values.replicas) }}
{{- if eq (int $.Values.replicas) 1 }}{{ break }}{{ end }}
{{- $peers = append $peers (printf "%s://%s-%d.%s-pods.%s.svc:13333" (include "conductor.scheme" $) (include "conductor.name" $) $i (include "conductor.name" $) $.Release.Namespace) }}
{{- end }}
{{- $listeners := list (dict "address" ":13333" "dialect" "conductor") (dict "address" ":8090" "dialect" "dynamo") }}
{{- if .Values.grpc.enabled }}
{{- $listeners = append $listeners (dict "address" (printf ":%d" (int .Values.grpc.port)) "dialect" "grpc") }}
{{- end }}
{{- $own := dict "listeners" $listeners "reload" (dict "watch" true) }}
{{- with $peers }}{{ $_ := set $own "dynamo" (dict "peers" .) }}{{ end }}
{{- if .Values.persistence.enabled }}{{ $_ := set $own "snapshot" (dict "dir" "/var/lib/conductor/snapshots") }}{{ end }}
{{- if .Values.auth.existingSecret }}
{{- $_ := set $own "auth" (dict "file" "/etc/conductor/auth/credentials.yaml") }}
{{- $_ := set $own "peer" (dict "token_file" "/etc/conductor/auth/peer-token") }}
{{- else }}
{{- $roles := list "query" "register" "metrics" "peer" }}
{{- if and .Values.replicasWithoutStore (gt (int .Values.replicas) 1) (not (include "conductor.store" .)) }}{{ $roles = without $roles "register" }}{{ end }}
{{- $_ := set $own "auth" (dict "anonymous" $roles) }}
{{- end }}
{{- if .Values.tls.existingSecret }}
{{- $tls := dict "cert" "/etc/conductor/tls/tls.crt" "key" "/etc/conductor/tls/tls.key" "client_ca" "/etc/conductor/tls/ca.crt" "require_client_cert" .Values.tls.requireClientCert }}
{{- $_ := set $own "tls" $tls }}
{{- $peer := dict "cacert" "/etc/conductor/tls/ca.crt" "cert" "/etc/conductor/tls/tls.crt" "key" "/etc/conductor/tls/tls.key" }}
{{- $_ := set $own "peer" (merge $peer (get $own "peer" | default dict)) }}
{{- end }}
{{- with include "conductor.store" . }}
{{- $store := dict "url" . "weight" $.Values.store.weight }}
{{- if $.Values.store.existingSecret }}{{ $_ := set $store "password_file" "/etc/conductor/store/password" }}{{ end }}
{{- with $.Values.valkey }}{{ if .enabled }}{{ $store = merge $store (dict "shelf_bytes" .shelfBytes) }}{{ end }}{{ end }}
{{- $_ := set $own "store" $store }}
{{- $_ := set $own "cluster" $.Values.cluster }}
{{- else }}
{{- if eq .Values.cluster.mode "shards" }}{{ fail "cluster.mode shards needs a store: set store.url or valkey.enabled" }}{{ end }}
{{- end }}
{{- if .Values.sources }}{{ $_ := set $own "sources" .Values.sources }}{{ end }}
{{- toYaml (mergeOverwrite $own (deepCopy .Values.config)) }}
{{- end }}
