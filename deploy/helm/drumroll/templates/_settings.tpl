{{/* The operator's settings file: what its `settings` module reads. */}}
{{- define "drumroll.settings" -}}
images:
  {{- range $role := list "scheduler" "rollout" "trainer" }}
  {{ $role }}:
    reference: {{ include "drumroll.image" (list $ $role) | quote }}
    pullPolicy: {{ include "drumroll.pullPolicy" (list $ $role) }}
  {{- end }}
imagePullSecrets: {{ toJson .Values.imagePullSecrets }}
{{- /* Helm takes a null value for none; the operator would put its own default in its place. */}}
{{- $security := .Values.jobs.podSecurity }}
podSecurity:
  {{- range $key := list "runAsUser" "runAsGroup" "fsGroup" }}
  {{ $key }}: {{ hasKey $security $key | ternary (index $security $key) nil | toJson }}
  {{- end }}
defaultClaim: {{ .Values.jobs.defaultClaim | quote }}
clusterDomain: {{ .Values.clusterDomain }}
networkPolicies: {{ .Values.jobs.networkPolicies }}
tls: {{ .Values.tls.enabled }}
keyFile: /etc/drumroll/key/key
watchNamespaces: {{ toJson .Values.watchNamespaces }}
operatorNamespace: {{ .Release.Namespace }}
operatorLabels: {{ include "drumroll.operatorSelector" . | fromYaml | toJson }}
{{- end }}
