{{- define "vllama.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- /* With nodes it is shorter: a pod of theirs has a label of their name, 16 characters, and at most 63. */ -}}
{{- define "vllama.fullname" -}}
{{- $longest := ternary 46 52 (gt (int .Values.nodes.count) 0) -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc $longest | trimSuffix "-" -}}
{{- else if contains (include "vllama.name" .) .Release.Name -}}
{{- .Release.Name | replace "." "-" | trunc $longest | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "vllama.name" .) | replace "." "-" | trunc $longest | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "vllama.selector" -}}
app.kubernetes.io/name: {{ include "vllama.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- if .part }}
app.kubernetes.io/component: {{ .part }}
{{- else if and .front (gt (int .Values.nodes.count) 0) }}
app.kubernetes.io/component: head
{{- end }}
{{- end -}}

{{- /* Not empty where each node has a volume of models of its own. */ -}}
{{- define "vllama.own-volumes" -}}
{{- if and (gt (int .Values.nodes.count) 0) (not .Values.storage.existingClaim) (ne .Values.storage.accessMode "ReadWriteMany") -}}yes{{- end -}}
{{- end -}}

{{- define "vllama.labels" -}}
{{ include "vllama.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "vllama.metadata" -}}
name: {{ include "vllama.fullname" . }}{{ with .part }}-{{ . }}{{ end }}
labels:
  {{- include "vllama.labels" . | nindent 2 }}
{{- end -}}

{{- define "vllama.image" -}}
{{- $cuda := and (gt (int .Values.gpu.count) 0) (eq .Values.gpu.resource "nvidia.com/gpu") -}}
{{- printf "%s:%s" .Values.image.repository (default (ternary "cuda" .Chart.AppVersion $cuda) .Values.image.tag) -}}
{{- end -}}

{{- define "vllama.mounts" -}}
- {name: models, mountPath: /models}
- {name: data, mountPath: /data}
- {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "vllama.environment" -}}
- {name: VLLAMA_HOST, value: 0.0.0.0}
- {name: VLLAMA_DATA_DIR, value: /data}
- {name: HF_HOME, value: /models/huggingface}
- {name: OLLAMA_MODELS, value: /models/ollama}
{{- if .Values.config }}
- {name: VLLAMA_CONFIG, value: /etc/vllama/config.toml}
{{- end }}
{{- range .Values.extraEnv }}
{{- /* a number or a switch has to be text */}}
{{- $value := dict }}
{{- if hasKey . "value" }}{{ $_ := set $value "value" (ternary .value (toJson .value) (kindIs "string" .value)) }}{{ end }}
- {{ merge $value . | toJson }}
{{- end }}
{{- end -}}

{{- define "vllama.confined" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- /* A quantity such as 500m, 8Gi or 8e9 as a plain number. */ -}}
{{- define "vllama.amount" -}}
{{- $number := regexFind "^[0-9.]+([eE][-+]?[0-9]+)?" . -}}
{{- $units := dict "" 1 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- mulf (float64 $number) (get $units (trimPrefix $number .)) -}}
{{- end -}}

{{- /* What cannot work is refused here, with what to do. */ -}}
{{- define "vllama.check" -}}
{{- if not (regexMatch "^[a-z]" (include "vllama.fullname" .)) -}}
{{- fail (printf "cannot call a Service '%s': its name has to begin with a letter; set fullnameOverride" (include "vllama.fullname" .)) -}}
{{- end -}}
{{- range $path, $resources := dict "resources" .Values.resources "nodes.head.resources" .Values.nodes.head.resources -}}
{{- $limits := default dict $resources.limits -}}
{{- range $name, $request := $resources.requests -}}
{{- $limit := get $limits $name | toString | default (toString $request) -}}
{{- if gt (include "vllama.amount" (toString $request) | float64) (include "vllama.amount" $limit | float64) -}}
{{- fail (printf "cannot reserve %v of %s: %s.limits.%s is only %s; raise it, too" $request $name $path $name $limit) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if gt (int .Values.nodes.count) 0 -}}
{{- if not .Values.nodes.keySecret -}}
{{- fail "cannot run several nodes: the key between them and the head is missing; make a secret of what `vllama nodes key` prints, and set nodes.keySecret to its name" -}}
{{- end -}}
{{- if .Values.autoscaling.enabled -}}
{{- fail "cannot scale nodes by themselves: the head has to know their names; set autoscaling.enabled to false, and change nodes.count" -}}
{{- end -}}
{{- end -}}
{{- if or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) -}}
{{- if and (not (include "vllama.own-volumes" .)) (not .Values.storage.existingClaim) (ne .Values.storage.accessMode "ReadWriteMany") -}}
{{- fail "cannot run several replicas: their models are on one volume that only one node can mount; set storage.accessMode to ReadWriteMany, or storage.existingClaim to such a claim" -}}
{{- end -}}
{{- if .Values.state.enabled -}}
{{- fail "cannot run several replicas: the database of keys and usage belongs to one server; set state.enabled to false, and keep the key in apiKey.existingSecret" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- fail "cannot scale: autoscaling.minReplicas is above autoscaling.maxReplicas" -}}
{{- end -}}
{{- end -}}
