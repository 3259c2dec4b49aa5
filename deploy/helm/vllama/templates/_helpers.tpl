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
app.kubernetes.io/component: {{ .part }}{{ with .pool }}-{{ . }}{{ end }}
{{- else if and .front (gt (int .Values.nodes.count) 0) }}
app.kubernetes.io/component: head
{{- end }}
{{- end -}}

{{- /* The labels of all nodes, whatever their pool. */ -}}
{{- define "vllama.nodes" -}}
{{ include "vllama.selector" (omit . "part" "front") }}
vllama-role: node
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

{{- define "vllama.partname" -}}
{{ include "vllama.fullname" . }}{{ with .part }}-{{ . }}{{ end }}{{ with .pool }}-{{ . }}{{ end }}
{{- end -}}

{{- define "vllama.metadata" -}}
name: {{ include "vllama.partname" . }}
labels:
  {{- include "vllama.labels" . | nindent 2 }}
{{- end -}}

{{- /* "all" if each model is a GGUF by its name, "none" if none is, else "some". */ -}}
{{- define "vllama.gguf" -}}
{{- $gguf := 0 -}}
{{- range .Values.models }}{{ if or (not (contains "/" .)) (regexMatch "(?i)gguf|^(hf\\.co|huggingface\\.co|registry\\.ollama\\.ai)/.*:|^[^/]+/[^/]+:[^/]+$" .) }}{{ $gguf = add1 $gguf }}{{ end }}{{ end -}}
{{- if eq (int $gguf) 0 }}none{{ else if eq (int $gguf) (len .Values.models) }}all{{ else }}some{{ end -}}
{{- end -}}

{{- /* An image has one engine; what is not for NVIDIA's GPUs has llama-server. */ -}}
{{- define "vllama.image" -}}
{{- $tag := .Chart.AppVersion -}}
{{- if and (gt (int .Values.gpu.count) 0) (eq .Values.gpu.resource "nvidia.com/gpu") -}}
{{- $llama := ternary (eq (include "vllama.gguf" .) "all") (eq .Values.engine "llama-server") (eq .Values.engine "") -}}
{{- $tag = ternary "llama-cuda" "cuda" $llama -}}
{{- end -}}
{{- printf "%s:%s" .Values.image.repository (default $tag .Values.image.tag) -}}
{{- end -}}

{{- define "vllama.mounts" -}}
- {name: models, mountPath: /models}
- {name: data, mountPath: /data}
- {name: tmp, mountPath: /tmp}
- {name: config, mountPath: /etc/vllama, readOnly: true}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* A whole folder, which Kubernetes updates in running pods. */ -}}
{{- define "vllama.config-volume" -}}
name: config
projected:
  sources:
    - secret: {name: {{ default (include "vllama.partname" .) .Values.configSecret | quote }}, items: [{key: config.toml, path: config.toml}]}
    {{- if ne (default "" .part) "head" }}
    - configMap: {name: {{ include "vllama.partname" . }}}
    {{- end }}
{{- end -}}

{{- define "vllama.environment" -}}
- {name: VLLAMA_HOST, value: {{ .Values.listen | quote }}}
- {name: VLLAMA_DATA_DIR, value: /data}
- {name: HF_HOME, value: /models/huggingface}
- {name: OLLAMA_MODELS, value: /models/ollama}
- {name: VLLAMA_CONFIG, value: /etc/vllama/config.toml}
{{- range .Values.extraEnv }}
{{- /* a number or a switch has to be text */}}
{{- $value := dict }}
{{- if hasKey . "value" }}{{ $_ := set $value "value" (ternary .value (toJson .value) (kindIs "string" .value)) }}{{ end }}
- {{ merge $value . | toJson }}
{{- end }}
{{- end -}}

{{- /* A quantity such as 500m, 8Gi or 8e9 as a plain number. */ -}}
{{- define "vllama.amount" -}}
{{- $number := regexFind "^[0-9.]+([eE][-+]?[0-9]+)?" . -}}
{{- $units := dict "" 1 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- mulf (float64 $number) (get $units (trimPrefix $number .)) -}}
{{- end -}}

{{- /* The servers of a release, with the values of each: one alone, or a head and pools of nodes. */ -}}
{{- define "vllama.parts" -}}
{{- $parts := list (dict "part" "" "pool" "" "values" .Values) -}}
{{- if gt (int .Values.nodes.count) 0 -}}
{{- /* the head loads no model, so it wants neither GPUs nor the nodes' files and settings */ -}}
{{- $head := deepCopy .Values -}}
{{- $args := list "--no-local" "--node-key-file" "/etc/vllama-node/node.key" "--node" (printf "dns+%s://%s-node:11434" (ternary "https" "http" (ne .Values.nodes.tls.secret "")) (include "vllama.fullname" .)) -}}
{{- $_ := mergeOverwrite $head (dict "models" list "contextLength" 0 "engine" "" "extraArgs" (concat $args .Values.nodes.head.extraArgs)) -}}
{{- range $own := list "config" "configSecret" "resources" "nodeSelector" "tolerations" "affinity" -}}
{{- $_ := set $head $own (index $.Values.nodes.head $own) -}}
{{- end -}}
{{- $_ := set $head "topologySpreadConstraints" list -}}
{{- $_ := set $head "gpu" (dict "count" 0 "resource" "") -}}
{{- $parts = list (dict "part" "head" "pool" "" "values" $head) -}}
{{- range prepend .Values.nodes.pools (dict "name" "" "count" .Values.nodes.count) -}}
{{- $node := mergeOverwrite (deepCopy $.Values) (omit . "name" "count") -}}
{{- if and .config (not .configSecret) -}}{{- $_ := set $node "configSecret" "" -}}{{- end -}}
{{- /* clients' keys are the head's affair: a node knows one key, and nothing that has to be kept */ -}}
{{- $_ := mergeOverwrite $node (dict "apiKey" (dict "existingSecret" "") "state" (dict "enabled" false) "extraArgs" (concat (list "--node-key-file" "/etc/vllama-node/node.key") $node.extraArgs)) -}}
{{- $parts = append $parts (dict "part" "node" "pool" .name "count" .count "values" $node) -}}
{{- end -}}
{{- end -}}
{{- toJson $parts -}}
{{- end -}}

{{- /* What cannot work is refused here, with what to do. */ -}}
{{- define "vllama.check" -}}
{{- if not (regexMatch "^[a-z]" (include "vllama.fullname" .)) -}}
{{- fail (printf "cannot call a Service '%s': its name has to begin with a letter; set fullnameOverride" (include "vllama.fullname" .)) -}}
{{- end -}}
{{- $all := dict "resources" .Values.resources "nodes.head.resources" .Values.nodes.head.resources -}}
{{- range include "vllama.parts" . | fromJsonArray -}}
{{- if .pool }}{{ $_ := set $all (printf "nodes.pools.%s.resources" .pool) .values.resources }}{{ end -}}
{{- with set (merge (dict "part" .part "pool" .pool) $) "Values" .values -}}
{{- if gt (len (include "vllama.partname" .)) 52 -}}
{{- fail (printf "cannot call a StatefulSet '%s': it has more than 52 characters; set fullnameOverride" (include "vllama.partname" .)) -}}
{{- end -}}
{{- $nvidia := and (gt (int .Values.gpu.count) 0) (eq .Values.gpu.resource "nvidia.com/gpu") -}}
{{- if not (or .Values.image.tag (has .Values.engine (list "" "llama-server" (ternary "vllm" "" $nvidia)))) -}}
{{- fail (printf "cannot run the engine %s: no image of this chart has it; set image.tag to one that does" .Values.engine) -}}
{{- end -}}
{{- if and $nvidia (not .Values.image.tag) (not .Values.engine) (eq (include "vllama.gguf" .) "some") -}}
{{- fail "cannot choose the image: some models are GGUF, others are not; set engine, or give one kind to a pool of nodes.pools" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $path, $resources := $all -}}
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
{{- if .Values.inferencePool.enabled -}}
{{- fail "cannot have a head and a pool: a router of inferencePool takes the head's place; set nodes.count to 0, and replicas" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.inferencePool.enabled (not .Values.inferencePool.endpointPicker) -}}
{{- fail "cannot make a pool: nobody chooses its replicas; set inferencePool.endpointPicker to a Service" -}}
{{- end -}}
{{- if or (gt (int .Values.replicas) 1) (and .Values.autoscaling.enabled (eq (int .Values.nodes.count) 0)) -}}
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
