package picture

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"sallyport/ingress"
	"sallyport/ingress/input"
)

// A portion is the part of a picture that one namespace has.
type portion struct {
	bytes   int
	largest ingress.ObjectRef
	most    int // bytes of the largest
}

// bound returns the part of a snapshot that fits into a picture of most bytes, and a problem for
// each namespace that it leaves out. The map sizes has the bytes of objects that were measured
// before. Its entries are replaced by those of this snapshot. A namespace is left out as a whole,
// because Ingresses without their Secrets or servers would only reject clients.
func bound(s input.Snapshot, most int, sizes map[any]int) (part input.Snapshot, left []ingress.Problem, err error) {
	portions, now, total := map[string]*portion{}, map[any]int{}, 0
	for _, list := range s.All() {
		for _, o := range list {
			size, known := sizes[o]
			if !known {
				text, err := json.Marshal(o)
				if err != nil {
					return s, nil, err
				}
				size = len(text) + 1
			}
			now[o] = size
			named, is := o.(interface {
				GetNamespace() string
				GetName() string
			})
			if !is || named.GetNamespace() == "" {
				continue
			}
			of := portions[named.GetNamespace()]
			if of == nil {
				of = &portion{}
				portions[named.GetNamespace()] = of
			}
			of.bytes += size
			total += size
			if size > of.most {
				of.most = size
				of.largest = ingress.ObjectRef{
					Cluster: s.Cluster, Kind: reflect.TypeOf(o).Elem().Name(),
					Namespace: named.GetNamespace(), Name: named.GetName(), UID: input.UIDOf(o),
				}
			}
		}
	}
	clear(sizes)
	maps.Copy(sizes, now)

	share := s.Options.Limits.PictureBytes
	if s.Options.OneTenant {
		share = 0
	}
	out := map[string]bool{}
	leave := func(namespace, why string) {
		of := portions[namespace]
		out[namespace] = true
		total -= of.bytes
		left = append(left, ingress.Problem{ObjectRef: of.largest, Reason: "LimitReached", Why: fmt.Sprintf(
			"the objects of namespace %s %s: the last good picture is without this namespace, and a start "+
				"while the API server is away does not serve it; its largest object is this one", namespace, why)})
	}
	bySize := slices.SortedFunc(maps.Keys(portions), func(a, b string) int {
		return cmp.Or(cmp.Compare(portions[b].bytes, portions[a].bytes), strings.Compare(a, b))
	})
	for _, namespace := range bySize {
		switch {
		case share > 0 && portions[namespace].bytes > share:
			leave(namespace, fmt.Sprintf("would take more than %d bytes of a picture "+
				"(clusters[].ingress.limits.pictureBytes)", share))
		case total > most-most/8: // the rest is for objects without a namespace
			leave(namespace, fmt.Sprintf("are the largest of a picture that may have %d bytes", most))
		}
	}
	if len(out) == 0 {
		return s, nil, nil
	}
	s.Objects = s.Without(out)
	slices.SortFunc(left, func(a, b ingress.Problem) int { return strings.Compare(a.Namespace, b.Namespace) })
	return s, left, nil
}

// noteLeft notes which namespaces the last picture of a cluster leaves out, and logs each
// that is new.
func (p *Store) noteLeft(cluster string, left []ingress.Problem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.left[cluster]
	if len(left) == 0 {
		delete(p.left, cluster)
	} else {
		p.left[cluster] = left
	}
	for _, one := range left {
		if !slices.ContainsFunc(was, func(o ingress.Problem) bool { return o.Namespace == one.Namespace }) {
			p.log.Warn("a namespace is left out of the last good picture",
				"cluster", cluster, "namespace", one.Namespace, "why", one.Why)
		}
	}
}

// LeftOut returns a problem for each namespace that the last picture of a cluster leaves
// out. The list is never changed.
func (p *Store) LeftOut(cluster string) []ingress.Problem {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left[cluster]
}
