{{/* The name of all objects: that of the release, with "baton" in it. A DNS label. */}}
{{- define "baton.name" -}}
{{- $name := printf "%s-baton" .Release.Name }}
{{- if contains "baton" .Release.Name }}{{ $name = .Release.Name }}{{ end }}
{{- $name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "baton.selector" -}}
app.kubernetes.io/name: baton
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "baton.labels" -}}
{{ include "baton.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* A value as the broker reads it from the environment. A whole number comes from YAML as a float, which would print as 1e+06. */}}
{{- define "baton.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{/* Fails with words if the values of a cluster do not fit together. */}}
{{- define "baton.clusterCheck" -}}
{{- with .Values.cluster }}
{{- if .enabled }}
{{- if not .keysSecretName }}
{{- fail "cluster.keysSecretName is missing: make the keys of the brokers with `baton cluster keys --out keys`, put them into a secret with `kubectl create secret generic baton-cluster --from-file=keys`, and name the secret" }}
{{- end }}
{{- if not .log.secretName }}
{{- fail "cluster.log.secretName is missing: put the address of the database or the bucket into a secret with `kubectl create secret generic baton-log --from-literal=url=...`, and name the secret" }}
{{- end }}
{{- if not $.Values.metrics.enabled }}
{{- fail "metrics.enabled is false: the probes of a cluster ask the port of the metrics, because a follower passes its other port on to the leader" }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
