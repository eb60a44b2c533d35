{{- define "drumroll.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "drumroll.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "drumroll.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "drumroll.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* Names the Deployment, its ServiceAccount, Lease, roles and budget. */}}
{{- define "drumroll.operator" -}}
{{- include "drumroll.fullname" . }}-operator
{{- end }}

{{- define "drumroll.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "drumroll.operator" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "drumroll.labels" -}}
{{- $own := dict
  "app.kubernetes.io/name" (include "drumroll.name" .)
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "app.kubernetes.io/part-of" "drumroll"
  "helm.sh/chart" (printf "%s-%s" .Chart.Name (replace "+" "_" .Chart.Version)) -}}
{{- merge $own .Values.commonLabels | toYaml -}}
{{- end }}

{{/* Never changes over upgrades. */}}
{{- define "drumroll.operatorSelector" -}}
app.kubernetes.io/name: {{ include "drumroll.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{/* Image of a role: (list $ "scheduler"). A digest wins over any tag. */}}
{{- define "drumroll.image" -}}
{{- $root := index . 0 -}}
{{- $image := index $root.Values.images (index . 1) -}}
{{- $registry := coalesce $image.registry $root.Values.image.registry $root.Values.global.imageRegistry -}}
{{- $name := $image.repository -}}
{{- if $registry }}{{ $name = printf "%s/%s" (trimSuffix "/" $registry) $name }}{{ end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (coalesce $image.tag $root.Values.image.tag $root.Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{- define "drumroll.pullPolicy" -}}
{{- $root := index . 0 -}}
{{- coalesce (index $root.Values.images (index . 1)).pullPolicy $root.Values.image.pullPolicy -}}
{{- end }}

{{- define "drumroll.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "drumroll.keySecret" -}}
{{- default (printf "%s-key" (include "drumroll.operator" .)) .Values.derivationKey.existingSecret -}}
{{- end }}
