package kubelet

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// A mount maps a folder that a container expects to the folder that has its files.
type mount struct{ at, dir string }

// mounts writes the files of a container's Secrets and ConfigMaps below dir, and returns where they
// are. The longest path is first. Volumes of other kinds are left out.
func mounts(object *corev1.Pod, c *corev1.Container, dir string, objects lookup) ([]mount, error) {
	var all []mount
	for _, m := range c.VolumeMounts {
		at := slices.IndexFunc(object.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if at < 0 {
			continue // the API server refuses such a pod
		}
		v := object.Spec.Volumes[at]
		var (
			kind, name string
			items      []corev1.KeyToPath
			optional   *bool
		)
		switch {
		case v.Secret != nil:
			kind, name, items, optional = "Secret", v.Secret.SecretName, v.Secret.Items, v.Secret.Optional
		case v.ConfigMap != nil:
			kind, name, items, optional = "ConfigMap", v.ConfigMap.Name, v.ConfigMap.Items, v.ConfigMap.Optional
		default:
			continue
		}
		data, found, err := objects(kind, name)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", v.Name, err)
		}
		may := optional != nil && *optional
		if !found && !may {
			return nil, fmt.Errorf("volume %s: %s %q not found", v.Name, kind, name)
		}
		files, err := project(data, items, may)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %s %q: %w", v.Name, kind, name, err)
		}
		folder := filepath.Join(dir, v.Name)
		if err := writeFiles(folder, files); err != nil {
			return nil, fmt.Errorf("volume %s: %w", v.Name, err)
		}
		all = append(all, mount{filepath.Clean(m.MountPath), filepath.Join(folder, m.SubPath)})
	}
	slices.SortFunc(all, func(a, b mount) int { return cmp.Compare(len(b.at), len(a.at)) })
	return all, nil
}

// project returns the files of a volume: the chosen items, or a file for each key.
func project(data map[string]string, items []corev1.KeyToPath, optional bool) (map[string]string, error) {
	if len(items) == 0 {
		return data, nil
	}
	files := map[string]string{}
	for _, item := range items {
		value, found := data[item.Key]
		if !found && !optional {
			return nil, fmt.Errorf("key %q not found", item.Key)
		}
		if found {
			files[item.Path] = value
		}
	}
	return files, nil
}

// writeFiles writes files into a folder, and nothing outside it.
func writeFiles(dir string, files map[string]string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for name, text := range files {
		if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return err
		}
		if err := root.WriteFile(name, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// moved returns a word with the real path of a file, if the word begins with the path of a mount.
func moved(word string, all []mount) string {
	for _, m := range all {
		if rest, is := strings.CutPrefix(word, m.at); is && (rest == "" || rest[0] == '/') {
			return m.dir + rest
		}
	}
	return word
}

// prepare returns the command line and the environment of a container. It first writes the files of
// the container's volumes: a later change of a Secret or ConfigMap reaches only the next start.
func (c *container) prepare(ctx context.Context, program string) (argv []string, vars map[string]string, err error) {
	object := c.pod.withAddresses()
	objects := func(kind, name string) (map[string]string, bool, error) { return c.pod.data(ctx, kind, name) }
	if vars, err = environ(object, c.spec, objects); err != nil {
		return nil, nil, err
	}
	files, err := mounts(object, c.spec, filepath.Join(c.pod.volumes(), c.spec.Name), objects)
	if err != nil {
		return nil, nil, err
	}
	argv = command(program, c.spec, vars, func(path string) bool {
		info, err := os.Stat(path)
		return err == nil && !info.IsDir()
	})
	for i, word := range argv[1:] {
		argv[i+1] = moved(word, files)
	}
	for name, value := range vars {
		vars[name] = moved(value, files)
	}
	return argv, vars, nil
}

// volumes returns the folder of the pod's volumes. The pod removes it at its end, and the next run
// of the kubelet removes those that a crash left behind.
func (p *pod) volumes() string { return filepath.Join(p.Dir, volumesDir, string(p.uid)) }

const volumesDir = "volumes"
