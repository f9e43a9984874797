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
