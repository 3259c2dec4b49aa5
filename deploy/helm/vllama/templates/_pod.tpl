{{- /* The pod of a server, of a node, or of the head: `part` is empty, "node" or "head". */ -}}
{{- define "vllama.pod" -}}
metadata:
  labels:
    {{- merge (include "vllama.selector" . | fromYaml) (default dict .Values.podLabels) | toYaml | nindent 4 }}
  {{- if or .Values.config .Values.podAnnotations }}
  annotations:
    {{- if .Values.config }}
    checksum/config: {{ .Values.config | sha256sum }}
    {{- end }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
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
  {{- else if eq (default "" .part) "node" }}
  # one vllama on a node of the cluster, since it plans with the whole machine's memory
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
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  {{- if .Values.models }}
  # one container for each model: a download that fails is shown by its name, and goes on where it stopped
  initContainers:
    {{- range $place, $model := .Values.models }}
    - name: pull-{{ $place }}
      image: {{ include "vllama.image" $ }}
      imagePullPolicy: {{ $.Values.image.pullPolicy }}
      # a pod that starts again does not need the hub
      command: [sh, -c, 'vllama show "$0" > /dev/null 2>&1 || exec vllama pull "$0"', {{ $model | quote }}]
      env:
        {{- include "vllama.environment" $ | nindent 8 }}
      {{- include "vllama.confined" $ | nindent 6 }}
      resources:
        {{- toYaml $.Values.resources | nindent 8 }}
      volumeMounts:
        {{- include "vllama.mounts" $ | nindent 8 }}
        {{- if $.Values.config }}
        - {name: config, mountPath: /etc/vllama, readOnly: true}
        {{- end }}
    {{- end }}
  {{- end }}
  containers:
    - name: vllama
      image: {{ include "vllama.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      {{- $args := concat (ternary (list "--engine" .Values.engine) list (ne .Values.engine "")) (ternary (list "--context-length" (toString (int64 .Values.contextLength))) list (gt (int .Values.contextLength) 0)) .Values.extraArgs }}
      {{- if and .Values.models (or (ne (default "" .part) "node") (eq (len .Values.models) 1)) }}
      {{- $args = concat (list "--model" (first .Values.models)) $args }}
      {{- end }}
      {{- with $args }}
      args: {{ toJson . }}
      {{- end }}
      env:
        - {name: VLLAMA_SHUTDOWN_DELAY, value: {{ int64 .Values.shutdownDelaySeconds | quote }}}
        - {name: VLLAMA_DRAIN_TIMEOUT, value: {{ int64 .Values.drainSeconds | quote }}}
        - {name: VLLAMA_LOAD_TIMEOUT, value: {{ int64 .Values.startupSeconds | quote }}}
        {{- with .Values.apiKey.existingSecret }}
        - name: VLLAMA_API_KEY
          valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: {{ $.Values.apiKey.key | quote }}}}
        {{- end }}
        {{- /* it serves everybody who can reach it, until `vllama keys add`; the image alone does not start */}}
        {{- if not (or .Values.apiKey.existingSecret (eq (default "" .part) "node")) }}
        - {name: VLLAMA_OPEN, value: "1"}
        {{- end }}
        {{- include "vllama.environment" . | nindent 8 }}
      ports:
        - {name: http, containerPort: 11434}
      {{- /* a head is ready with its first node, which may download models for a long time */}}
      startupProbe:
        httpGet: {path: {{ ternary "/livez" "/readyz" (eq (default "" .part) "head") }}, port: http}
        periodSeconds: 5
        failureThreshold: {{ div (add .Values.startupSeconds 64) 5 }}
      readinessProbe:
        httpGet: {path: /readyz, port: http}
        periodSeconds: 5
      livenessProbe:
        httpGet: {path: /livez, port: http}
        periodSeconds: 10
        timeoutSeconds: 5
      {{- $resources := deepCopy .Values.resources }}
      {{- if gt (int .Values.gpu.count) 0 }}
      {{- $limits := merge (dict .Values.gpu.resource (int .Values.gpu.count)) (default dict $resources.limits) }}
      {{- $_ := set $resources "limits" $limits }}
      {{- end }}
      resources:
        {{- toYaml $resources | nindent 8 }}
      {{- include "vllama.confined" . | nindent 6 }}
      volumeMounts:
        {{- include "vllama.mounts" . | nindent 8 }}
        {{- if .Values.config }}
        - {name: config, mountPath: /etc/vllama, readOnly: true}
        {{- end }}
        {{- if .part }}
        - {name: node-key, mountPath: /etc/vllama-node, readOnly: true}
        {{- end }}
        {{- if gt (int .Values.gpu.count) 0 }}
        - {name: shm, mountPath: /dev/shm}
        {{- end }}
  volumes:
    {{- if eq (default "" .part) "head" }}
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
    {{- if .Values.config }}
    - name: config
      configMap: {name: {{ include "vllama.fullname" . }}}
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
