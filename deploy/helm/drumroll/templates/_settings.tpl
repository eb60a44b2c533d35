{{/* The operator's settings file: what its `settings` module reads. */}}
{{- define "drumroll.settings" -}}
images:
  {{- range $role := list "scheduler" "rollout" "trainer" }}
  {{ $role }}:
    reference: {{ include "drumroll.image" (list $ $role) | quote }}
    pullPolicy: {{ include "drumroll.pullPolicy" (list $ $role) }}
  {{- end }}
imagePullSecrets: {{ toJson .Values.imagePullSecrets }}
podSecurity: {{ toJson .Values.jobs.podSecurity }}
defaultClaim: {{ .Values.jobs.defaultClaim | quote }}
clusterDomain: {{ .Values.clusterDomain }}
networkPolicies: {{ .Values.jobs.networkPolicies }}
tls: {{ .Values.tls.enabled }}
keyFile: /etc/drumroll/key/key
watchNamespaces: {{ toJson .Values.watchNamespaces }}
operatorNamespace: {{ .Release.Namespace }}
operatorLabels: {{ include "drumroll.operatorSelector" . | fromYaml | toJson }}
{{- end }}
