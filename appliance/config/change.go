package config

import (
	"reflect"
	"slices"
)

// The values of the tag change.
const (
	live    = "live"
	restart = "restart"
)

// Next returns the Config for a process that runs on c, after its file became other.
// The live keys are from other, the restart keys from c. waiting names each restart key
// that differs, with its place in the file. A value that neither file sets was found
// out about the machine; it stays as in c.
func (c *Config) Next(other *Config) (next *Config, waiting []string) {
	n := *other
	n.Clusters = slices.Clone(other.Clusters)
	changes(reflect.TypeOf(n), "", "", func(key, change string, path []int) {
		was, now := reflect.ValueOf(c).Elem().FieldByIndex(path), reflect.ValueOf(&n).Elem().FieldByIndex(path)
		if change != restart || reflect.DeepEqual(was.Interface(), now.Interface()) {
			return
		}
		if c.file.given(key) || other.file.given(key) {
			waiting = append(waiting, other.file.where(key)+": "+key+": takes effect at the next start of sallyport")
		}
		now.Set(was)
	})
	n.fillASN()
	return &n, waiting
}

// changes yields each key that is written as one value: its name, its tag change or
// that of the nearest key around it, and the indexes of its field. A list is one key.
func changes(t reflect.Type, at, around string, yield func(key, change string, path []int)) {
	for key, f := range fields(t) {
		change := around
		if own, ok := f.Tag.Lookup("change"); ok {
			change = own
		}
		if at != "" {
			key = at + "." + key
		}
		if isLeaf(f.Type) {
			yield(key, change, f.Index)
			continue
		}
		changes(f.Type, key, change, func(key, change string, path []int) {
			yield(key, change, slices.Concat(f.Index, path))
		})
	}
}
