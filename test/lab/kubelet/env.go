package kubelet

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// expand replaces $(NAME) by the variable's value. $$ is a dollar. An undefined name stays as
// written (Kubernetes, "Define Dependent Environment Variables").
func expand(s string, vars map[string]string) string {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(s, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		s = after
		name, rest, closed := strings.Cut(strings.TrimPrefix(after, "("), ")")
		value, known := vars[name]
		switch {
		case strings.HasPrefix(after, "$"):
			out.WriteByte('$')
			s = after[1:]
		case strings.HasPrefix(after, "(") && closed && known:
			out.WriteString(value)
			s = rest
		case strings.HasPrefix(after, "(") && closed:
			out.WriteString("$(" + name + ")")
			s = rest
		default:
			out.WriteByte('$')
		}
	}
}

// A lookup reads the data of a ConfigMap or Secret; found is false if the
// object does not exist.
type lookup func(kind, name string) (data map[string]string, found bool, err error)

// environ returns the environment of a container: PATH, HOSTNAME, envFrom, then env in order,
// where each entry may use those before it.
func environ(pod *corev1.Pod, c *corev1.Container, objects lookup) (map[string]string, error) {
	vars := map[string]string{
		"PATH":     "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOSTNAME": pod.Name,
	}
	for _, from := range c.EnvFrom {
		kind, name, optional := "ConfigMap", "", (*bool)(nil)
		switch {
		case from.ConfigMapRef != nil:
			name, optional = from.ConfigMapRef.Name, from.ConfigMapRef.Optional
		case from.SecretRef != nil:
			kind, name, optional = "Secret", from.SecretRef.Name, from.SecretRef.Optional
		}
		data, found, err := objects(kind, name)
		if err != nil {
			return nil, err
		}
		if !found && (optional == nil || !*optional) {
			return nil, fmt.Errorf("%s %q not found", kind, name)
		}
		for key, value := range data {
			vars[from.Prefix+key] = value
		}
	}
	for _, v := range c.Env {
		if v.ValueFrom == nil {
			vars[v.Name] = expand(v.Value, vars)
			continue
		}
		value, found, err := valueFrom(pod, v.ValueFrom, objects)
		if err != nil {
			return nil, fmt.Errorf("variable %s: %w", v.Name, err)
		}
		if found {
			vars[v.Name] = value
		}
	}
	return vars, nil
}

func valueFrom(pod *corev1.Pod, from *corev1.EnvVarSource, objects lookup) (string, bool, error) {
	var (
		kind, name, key string
		optional        *bool
	)
	switch {
	case from.FieldRef != nil:
		value, err := field(pod, from.FieldRef.FieldPath)
		return value, true, err
	case from.ConfigMapKeyRef != nil:
		r := from.ConfigMapKeyRef
		kind, name, key, optional = "ConfigMap", r.Name, r.Key, r.Optional
	case from.SecretKeyRef != nil:
		r := from.SecretKeyRef
		kind, name, key, optional = "Secret", r.Name, r.Key, r.Optional
	default:
		return "", false, fmt.Errorf("this source of a value is not supported in the lab")
	}
	data, _, err := objects(kind, name)
	if err != nil {
		return "", false, err
	}
	value, found := data[key]
	if !found && (optional == nil || !*optional) {
		return "", false, fmt.Errorf("key %q of %s %q not found", key, kind, name)
	}
	return value, found, nil
}

// field returns the value of a downward API path.
func field(pod *corev1.Pod, path string) (string, error) {
	if name, key, ok := strings.Cut(strings.TrimSuffix(path, "']"), "['"); ok {
		switch name {
		case "metadata.labels":
			return pod.Labels[key], nil
		case "metadata.annotations":
			return pod.Annotations[key], nil
		}
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return pod.Status.HostIP, nil
	case "status.hostIPs":
		var all []string
		for _, ip := range pod.Status.HostIPs {
			all = append(all, ip.IP)
		}
		return strings.Join(all, ","), nil
	case "status.podIP":
		return pod.Status.PodIP, nil
	case "status.podIPs":
		var all []string
		for _, ip := range pod.Status.PodIPs {
			all = append(all, ip.IP)
		}
		return strings.Join(all, ","), nil
	}
	return "", fmt.Errorf("field %q is not supported in the lab", path)
}

// command returns the command line of a container. The image stands for a program. The container's
// own command replaces that only if it names a program of this machine: paths inside an image mean
// nothing here.
func command(program string, c *corev1.Container, vars map[string]string, exists func(path string) bool) []string {
	argv := []string{program}
	for i, word := range c.Command {
		word = expand(word, vars)
		if i > 0 {
			argv = append(argv, word)
		} else if strings.HasPrefix(word, "/") && exists(word) {
			argv[0] = word
		}
	}
	for _, word := range c.Args {
		argv = append(argv, expand(word, vars))
	}
	return argv
}

// pairs returns an environment as exec expects it.
func pairs(vars map[string]string) []string {
	var env []string
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		env = append(env, name+"="+vars[name])
	}
	return env
}
