package annotations

import (
	"errors"
	"fmt"
	"strings"

	"sallyport/haproxy"
)

// A Resource has what a Backend, a custom resource of HAProxy's own controller, says about the backends of
// the objects that name it.
type Resource struct {
	Said  []Said   // values of keys, which override those of all objects
	Lines []string // the fields that no key says: they become lines of the configuration
	Size  int      // about how many bytes these lines have
	Rules bool     // the lines may keep clients out
	Left  []string // a sentence for each field without an effect

	// Text returns the lines. It returns an error if there are none, or if they cannot be written.
	Text func() (haproxy.Text, error)
}

// Bytes returns about how many bytes of HAProxy's configuration a Resource takes in one backend.
func (r *Resource) Bytes() int {
	n := r.Size
	for _, s := range r.Said {
		n += len(s.Key) + len(s.Text)
	}
	return n
}

var ofController = defineIn(func(e Env, scope Scope, s string) (*Resource, error) {
	ref, err := reference(s)
	if err != nil {
		return nil, err
	}
	return e.Backend(scope, ref)
}, Doc{
	Name: "cr-backend", Scopes: everywhere, Traffic: anyTraffic, Guard: true, Refers: BackendKind,
	Format: "Backend, or namespace/Backend",
	Effect: "The settings of a Backend of ingress.v3.haproxy.org or ingress.v1.haproxy.org, with " +
		"`clusters[].ingress.customResources`. They override the keys of all objects ([KIC.md](KIC.md)). While the " +
		"Backend does not exist or cannot be used, all clients are rejected.",
})

// BackendOf returns the name of the Backend that a Layer names, or false if it names none.
func BackendOf(l Layer) (ref Ref, named bool) {
	said, has := l.Values[ofController.Name]
	if !has {
		return Ref{}, false
	}
	ref, err := reference(said.Text)
	return ref, err == nil
}

// heedResource puts the values of the Backend that an object names before those of all objects.
func (v *values) heedResource() {
	r, said := get(v, ofController)
	if !said {
		return
	}
	scope := v.scopeOf(ofController.Name)
	if v.resource = r; r == nil {
		v.report(ofController.Doc, scope, "NotServed",
			errors.New("custom resources are not read (clusters[].ingress.customResources)"))
		return
	}
	for _, why := range r.Left {
		v.report(ofController.Doc, scope, "FieldLeftOut", errors.New(why))
	}
	if len(r.Said) > 0 {
		v.layers = append([]Layer{Layer{Scope: scope}.With(r.Said...)}, v.layers...)
	}
}

// resource adds the lines of the Backend that an object names, if they may be used. The backend is closed
// without lines that may keep clients out, also until HAProxy has accepted them.
func resource(v *values, s *Settings) {
	r := v.resource
	if r == nil || len(r.Lines) == 0 {
		return
	}
	err := v.env.Allowed(v.scopeOf(ofController.Name), haproxy.BackendSection)
	var text haproxy.Text
	if err == nil {
		text, err = r.Text()
	}
	if err == nil {
		verdict := v.ask(text.Question(), &s.Questions)
		if verdict == haproxy.Good {
			s.add(text.Directive())
			return
		}
		if v.closed = v.closed || r.Rules; verdict.Why == "" {
			return
		}
		err = errors.New(verdict.Why)
	}
	v.lose(err)
}

// lose reports that the lines of the Backend that an object names cannot be used.
func (v *values) lose(err error) {
	d := ofController.Doc
	d.Guard = v.resource.Rules
	v.wrong(d, fmt.Errorf("%s cannot be used: %w", strings.Join(v.resource.Lines, ", "), err))
}

// unfitResource reports the lines of the Backend that an object names for a backend that takes connections.
func (v *values) unfitResource() {
	if v.resource != nil && len(v.resource.Lines) > 0 {
		v.lose(errors.New("the lines are for HTTP requests, and this backend takes TCP connections"))
	}
}
