package move

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxLevels bounds the nesting of a document.
const maxLevels = 32

// readYAML reads the values of the Helm chart of the controller, or the objects that it makes.
func (k *kic) readYAML(f File, d *draft) error {
	k.helm = true
	found := false
	for decoder := yaml.NewDecoder(bytes.NewReader(f.Text)); ; {
		var doc yaml.Node
		err := decoder.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return errorAt(Place{File: f.Name}, "it is no YAML, or has aliases: correct it, or import the "+
				"arguments alone")
		}
		root := doc.Content[0]
		if !bounded(root, 0) {
			return errorAt(Place{f.Name, root.Line}, "it has aliases, or more than %d levels", maxLevels)
		}
		if values := child(root, "kubernetes-ingress"); values != nil {
			root = values // of a chart around the chart
		}
		if c := child(root, "controller"); c != nil {
			found = true
			k.values(f.Name, c, d)
			continue
		}
		for _, c := range containers(root) {
			words := append(list(child(c, "command")), list(child(c, "args"))...)
			args, is := argumentsOf(words, 0)
			if program.MatchString(base(text(child(c, "image")))) || is && !strings.HasPrefix(words[0], "--") {
				found = true
				k.arguments(Place{f.Name, c.Line}, args)
			}
		}
	}
	if !found {
		return errorAt(Place{File: f.Name}, "it has no values of the chart kubernetes-ingress (controller:), and no "+
			"container of the controller")
	}
	return nil
}

// bounded reports whether a document has no aliases and few levels.
func bounded(n *yaml.Node, level int) bool {
	if n.Kind == yaml.AliasNode || level > maxLevels {
		return false
	}
	return !slices.ContainsFunc(n.Content, func(c *yaml.Node) bool { return !bounded(c, level+1) })
}

// child returns the value of a key, or nil.
func child(n *yaml.Node, keys ...string) *yaml.Node {
	for _, key := range keys {
		if n == nil || n.Kind != yaml.MappingNode {
			return nil
		}
		var next *yaml.Node
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				next = n.Content[i+1]
			}
		}
		n = next
	}
	return n
}

// text returns a scalar, or nothing.
func text(n *yaml.Node) string {
	if n == nil || n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		return ""
	}
	return n.Value
}

// list returns the scalars of a list.
func list(n *yaml.Node) (all []string) {
	if n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	for _, c := range n.Content {
		all = append(all, text(c))
	}
	return all
}

// base returns the last part of the name of an image.
func base(image string) string {
	return image[bytes.LastIndexByte([]byte(image), '/')+1:]
}

// containers returns the containers of an object, or of those of a List.
func containers(root *yaml.Node) (all []*yaml.Node) {
	objects := []*yaml.Node{root}
	if items := child(root, "items"); items != nil {
		objects = items.Content
	}
	for _, o := range objects {
		for _, way := range [][]string{
			{"spec", "template", "spec", "containers"},
			{"spec", "containers"},
			{"spec", "jobTemplate", "spec", "template", "spec", "containers"},
		} {
			if found := child(o, way...); found != nil && found.Kind == yaml.SequenceNode {
				all = append(all, found.Content...)
			}
		}
	}
	return all
}

// known are the values of the chart that are about its own objects: nothing here needs them.
var known = []string{
	"kind", "replicaCount", "image", "imagePullSecrets", "resources", "nodeSelector", "tolerations", "affinity",
	"topologySpreadConstraints", "podAnnotations", "podLabels", "service", "serviceAccount", "rbac", "autoscaling",
	"PodDisruptionBudget", "PodSecurityPolicy", "securityContext", "livenessProbe", "readinessProbe", "startupProbe",
	"serviceMonitor", "podMonitor", "daemonset", "deployment", "strategy", "lifecycle", "name",
	"terminationGracePeriodSeconds", "containerPort", "extraEnvs", "extraVolumes", "extraVolumeMounts",
	"extraContainers", "initContainers", "dnsConfig",
	"dnsPolicy", "hostNetwork", "priorityClassName", "runtimeClassName", "unprivileged", "enableRuntimeDebug",
	"ingressClassResource", "crdjob", "podDisruptionBudget", "shareProcessNamespace", "minReadySeconds",
	"revisionHistoryLimit",
}

// values reads the part controller of the values.
func (k *kic) values(file string, c *yaml.Node, d *draft) {
	k.seen = true
	for i := 0; i+1 < len(c.Content); i += 2 {
		name, v := c.Content[i].Value, c.Content[i+1]
		at := Place{file, c.Content[i].Line}
		add := func(flagName, value string) {
			if value != "" {
				k.flags = append(k.flags, argument{name: flagName, value: value, at: at})
			}
		}
		switch name {
		case "extraArgs":
			k.arguments(at, list(v))
		case "ingressClass":
			if class := text(v); class != "" && class != "haproxy" {
				add("ingress.class", class)
			}
		case "config":
			for j := 0; v.Kind == yaml.MappingNode && j+1 < len(v.Content); j += 2 {
				d.data = append(d.data, quoted(v.Content[j].Value)+": "+quoted(text(v.Content[j+1])))
			}
		case "defaultTLSSecret":
			add("default-ssl-certificate", secret(child(v, "secretNamespace"), child(v, "secret")))
		case "logging":
			add("log", text(child(v, "level")))
		case "publishService":
			if text(child(v, "enabled")) == "true" {
				add("publish-service", "of the chart")
			}
		case "syncPeriod":
			d.none(at)
		default:
			if slices.Contains(known, name) {
				d.none(at)
				continue
			}
			d.note("", Remark{
				Kind: Left, At: at, What: "controller." + name,
				Why: "this command does not know the value of the chart",
			})
		}
	}
	d.note("clusters.ingress.configMap", Remark{
		Kind: ToDo, At: Place{file, c.Line}, Why: "the chart names its ConfigMap after the release",
		Do: "Find it with kubectl get configmap -A, and write NAMESPACE/NAME here",
	})
}

// secret returns the name of a Secret, or nothing.
func secret(namespace, name *yaml.Node) string {
	if text(namespace) == "" || text(name) == "" {
		return ""
	}
	return text(namespace) + "/" + text(name)
}
