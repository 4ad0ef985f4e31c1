package rig

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// An App is a Deployment of the sample application.
type App struct {
	Namespace, Name string // default: namespace default
	Replicas, Grace int    // default: 1 pod, and 1 second to end in
	Args            []string
	HostNetwork     bool
	Pod             string // pod name in the answers of its pods; default: the real one
	Node            string // of its pods; default: any
}

// Manifest returns the Deployment. With -tls-cert among the arguments the kubelet asks by HTTPS.
func (a App) Manifest() string {
	scheme, pod := "HTTP", "valueFrom: {fieldRef: {fieldPath: metadata.name}}"
	if slices.Contains(a.Args, "-tls-cert") {
		scheme = "HTTPS"
	}
	if a.Pod != "" {
		pod = "value: " + a.Pod
	}
	node := ""
	if a.Node != "" {
		node = "\n      nodeName: " + a.Node
	}
	return fmt.Sprintf(`---
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: %[1]s, name: %[2]s}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[2]s}}
  template:
    metadata: {labels: {app: %[2]s}}
    spec:
      terminationGracePeriodSeconds: %[4]d
      hostNetwork: %[5]t%[9]s
      containers:
      - name: app
        image: sample-app
        args: [%[6]s]
        env:
        - {name: POD_NAME, %[7]s}
        - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
        - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /healthz, port: http, scheme: %[8]s}, periodSeconds: 1, timeoutSeconds: 5}
`, cmp.Or(a.Namespace, "default"), a.Name, max(a.Replicas, 1), max(a.Grace, 1), a.HostNetwork, strings.Join(a.Args, ", "), pod, scheme, node)
}

// Service returns a Service whose port is web, for the pods of an App.
func Service(namespace, name, app string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {namespace: %s, name: %s}\nspec:\n"+
		"  selector: {app: %s}\n  ports: [{name: web, port: 80, targetPort: http}]\n", namespace, name, app)
}

// Ingress returns an Ingress of a class, which sends a host to the port web of a Service.
func Ingress(name, class, host, service string) string {
	return fmt.Sprintf(`---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: %s}
spec:
  ingressClassName: %s
  rules:
  - host: %s
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: %s, port: {name: web}}}}]}
`, name, class, host, service)
}
