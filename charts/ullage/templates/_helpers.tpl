{{- define "ullage.name" -}}
{{- if contains "ullage" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-ullage" (.Release.Name | trunc 40 | trimSuffix "-") }}{{ end }}-operator
{{- end }}

{{- define "ullage.selector" -}}
app.kubernetes.io/name: ullage-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ullage.hookSelector" -}}
app.kubernetes.io/name: ullage-operator-hook
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ullage.labels" -}}
{{ include "ullage.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "ullage.image" -}}
{{- with .Values.image }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ default $.Chart.AppVersion .tag }}{{ end }}{{ end }}
{{- end }}

{{- define "ullage.clusterName" -}}
{{ .Release.Namespace }}-{{ include "ullage.name" . }}
{{- end }}

{{- define "ullage.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 10001
capabilities:
  drop: [ALL]
{{- end }}

{{- define "ullage.podSecurity" -}}
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "ullage.priorityClass" -}}
{{ .Values.agents.priorityClassName | default (printf "%s-agents" (include "ullage.clusterName" .)) }}
{{- end }}

{{- /* What the operator reads as PodSettings. */}}
{{- define "ullage.pods" -}}
{{ omit .Values.agents "priority" "priorityClassName" | toYaml }}
priorityClassName: {{ include "ullage.priorityClass" . }}
{{- end }}
