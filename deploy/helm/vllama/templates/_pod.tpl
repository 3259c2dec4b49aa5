{{- /* The pod of a server, of a node, or of the head: `part` is empty, "node" or "head". */ -}}
{{- define "vllama.pod" -}}
{{- $isHead := eq (default "" .part) "head" -}}
{{- $isNode := eq (default "" .part) "node" -}}
{{- $tls := ternary .Values.nodes.tls.secret "" (or $isHead $isNode) -}}
metadata:
  labels:
    {{- merge (include (ternary "vllama.nodes" "vllama.selector" $isNode) . | fromYaml) (include "vllama.selector" . | fromYaml) (default dict .Values.podLabels) | toYaml | nindent 4 }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  # else a Service called vllama would set VLLAMA_PORT and others, which are settings of the server
  enableServiceLinks: false
  {{- with .Values.serviceAccount.name }}
  serviceAccountName: {{ . | quote }}
  {{- end }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  # the delay, running answers, then the engines
  terminationGracePeriodSeconds: {{ add .Values.shutdownDelaySeconds .Values.drainSeconds 30 }}
  {{- with .Values.gpu.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .Values.affinity }}
  affinity:
    {{- toYaml .Values.affinity | nindent 4 }}
  {{- else if and $isNode (not .Values.nodes.sharedMachines) }}
  # nodes are there for the memory and GPUs of several machines
  affinity:
    podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        - topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "vllama.selector" . | nindent 14 }}
  {{- end }}
  {{- with .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  {{- if not $isHead }}
  initContainers:
    - name: pull
      image: {{ include "vllama.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      # the names are in a file, so that another list is not another pod; one that starts again does not need the hub
      command:
        - sh
        - -c
        - while read -r model; do vllama show "$model" > /dev/null 2>&1 < /dev/null || vllama pull "$model" < /dev/null || exit; done < /etc/vllama/models
      env:
        {{- include "vllama.environment" . | nindent 8 }}
      securityContext:
        {{- toYaml .Values.securityContext | nindent 8 }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        {{- include "vllama.mounts" . | nindent 8 }}
  {{- end }}
  containers:
    - name: vllama
      image: {{ include "vllama.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      {{- $args := concat (ternary (list "--engine" .Values.engine) list (ne .Values.engine "")) (ternary (list "--context-length" (toString (int64 .Values.contextLength))) list (gt (int .Values.contextLength) 0)) .Values.extraArgs }}
      {{- if and .Values.models (or (not $isNode) (eq (len .Values.models) 1)) }}
      {{- $args = concat (list "--model" (first .Values.models)) $args }}
      {{- end }}
      {{- with $args }}
      args: {{ toJson . }}
      {{- end }}
      env:
        - {name: VLLAMA_SHUTDOWN_DELAY, value: {{ int64 .Values.shutdownDelaySeconds | quote }}}
        - {name: VLLAMA_DRAIN_TIMEOUT, value: {{ int64 .Values.drainSeconds | quote }}}
        - {name: VLLAMA_LOAD_TIMEOUT, value: {{ int64 .Values.startupSeconds | quote }}}
        - {name: VLLAMA_WATCH, value: "1"}
        {{- if not $isHead }}
        - {name: VLLAMA_MODELS_FILE, value: /etc/vllama/models}
        {{- end }}
        {{- if and $tls $isNode }}
        - {name: VLLAMA_TLS_CERT, value: /etc/vllama-tls/tls.crt}
        - {name: VLLAMA_TLS_KEY, value: /etc/vllama-tls/tls.key}
        {{- else if $tls }}
        - {name: VLLAMA_NODE_CERTS, value: /etc/vllama-tls/trusted.crt}
        {{- end }}
        {{- if .Values.inferencePool.enabled }}
        - {name: VLLAMA_PICKER_PORT, value: {{ int64 .Values.inferencePool.metricsPort | quote }}}
        {{- end }}
        {{- with .Values.apiKey.existingSecret }}
        - name: VLLAMA_API_KEY
          valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: {{ $.Values.apiKey.key | quote }}}}
        {{- end }}
        {{- /* it serves everybody who can reach it, until `vllama keys add`; the image alone does not start */}}
        {{- if not (or .Values.apiKey.existingSecret $isNode) }}
        - {name: VLLAMA_OPEN, value: "1"}
        {{- end }}
        {{- include "vllama.environment" . | nindent 8 }}
      ports:
        - {name: http, containerPort: 11434}
        {{- if .Values.inferencePool.enabled }}
        - {name: picker, containerPort: {{ int64 .Values.inferencePool.metricsPort }}}
        {{- end }}
      {{- $scheme := ternary ", scheme: HTTPS" "" (and (ne $tls "") $isNode) }}
      {{- /* a head is ready with its first node, which may download models for a long time */}}
      startupProbe:
        httpGet: {path: {{ ternary "/livez" "/readyz" $isHead }}, port: http{{ $scheme }}}
        periodSeconds: 5
        failureThreshold: {{ div (add .Values.startupSeconds 64) 5 }}
      readinessProbe:
        httpGet: {path: /readyz, port: http{{ $scheme }}}
        periodSeconds: 5
        timeoutSeconds: 4
      # a server that hangs finishes no response, so it gets no time for them
      livenessProbe:
        httpGet: {path: /livez, port: http{{ $scheme }}}
        periodSeconds: 5
        timeoutSeconds: 5
        terminationGracePeriodSeconds: 5
      {{- $resources := deepCopy .Values.resources }}
      {{- if gt (int .Values.gpu.count) 0 }}
      {{- $limits := merge (dict .Values.gpu.resource (int .Values.gpu.count)) (default dict $resources.limits) }}
      {{- $_ := set $resources "limits" $limits }}
      {{- end }}
      resources:
        {{- toYaml $resources | nindent 8 }}
      securityContext:
        {{- toYaml .Values.securityContext | nindent 8 }}
      volumeMounts:
        {{- include "vllama.mounts" . | nindent 8 }}
        {{- if $tls }}
        - {name: tls, mountPath: /etc/vllama-tls, readOnly: true}
        {{- end }}
        {{- if .part }}
        - {name: node-key, mountPath: /etc/vllama-node, readOnly: true}
        {{- end }}
        {{- if gt (int .Values.gpu.count) 0 }}
        - {name: shm, mountPath: /dev/shm}
        {{- end }}
  volumes:
    {{- if $isHead }}
    - name: models
      emptyDir: {}
    {{- else if not (include "vllama.own-volumes" .) }}
    - name: models
      persistentVolumeClaim: {claimName: {{ default (printf "%s-models" (include "vllama.fullname" .)) .Values.storage.existingClaim | quote }}}
    {{- end }}
    - name: data
      {{- if .Values.state.enabled }}
      persistentVolumeClaim: {claimName: {{ default (printf "%s-state" (include "vllama.fullname" .)) .Values.state.existingClaim | quote }}}
      {{- else }}
      emptyDir: {}
      {{- end }}
    - name: tmp
      emptyDir: {}
    - {{ include "vllama.config-volume" . | nindent 6 | trim }}
    {{- if $tls }}
    - name: tls
      secret:
        secretName: {{ $tls | quote }}
        {{- if $isHead }}
        items: [{key: {{ .Values.nodes.tls.trust | quote }}, path: trusted.crt}]
        {{- end }}
        defaultMode: 0440
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- if .part }}
    - name: node-key
      secret:
        secretName: {{ .Values.nodes.keySecret | quote }}
        items: [{key: {{ .Values.nodes.key | quote }}, path: node.key}]
        defaultMode: 0440
    {{- end }}
    {{- if gt (int .Values.gpu.count) 0 }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ .Values.gpu.sharedMemory }}}
    {{- end }}
{{- end -}}
