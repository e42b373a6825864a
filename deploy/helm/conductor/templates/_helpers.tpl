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
{{- $peers = append $peers (printf "%s://%s-%d.%s-pods.%s.svc:13333" (include "conductor.scheme" $) (include "conductor.name" $) $i (include "conductor.name" $) $.Release.Namespace) }}
{{- end }}
{{- $listeners := list (dict "address" ":13333" "dialect" "conductor") (dict "address" ":8090" "dialect" "dynamo") }}
{{- if .Values.grpc.enabled }}
{{- $listeners = append $listeners (dict "address" (printf ":%d" (int .Values.grpc.port)) "dialect" "grpc") }}
{{- end }}
{{- $own := dict "listeners" $listeners "reload" (dict "watch" true) }}
{{- $_ := set $own "dynamo" (dict "peers" $peers) }}
{{- if .Values.persistence.enabled }}{{ $_ := set $own "snapshot" (dict "dir" "/var/lib/conductor/snapshots") }}{{ end }}
{{- if .Values.auth.existingSecret }}
{{- $_ := set $own "auth" (dict "file" "/etc/conductor/auth/credentials.yaml") }}
{{- $_ := set $own "peer" (dict "token_file" "/etc/conductor/auth/peer-token") }}
{{- else }}
{{- $_ := set $own "auth" (dict "anonymous" (list "query" "register" "metrics" "peer")) }}
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
