package ingress

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/haproxy"
)

// TestTheServersOfADefaultBackendAreSpare has an Ingress with default-backend, and changes the Services one by one. A
// Compiler that remembers has to see each change.
func TestTheServersOfADefaultBackendAreSpare(t *testing.T) {
	const name = "prefix a.test/ -> default_ing_i_svc_web_http\n"
	const backend = name + "backend default_ing_i_svc_web_http:"
	var c Compiler
	for _, tt := range []struct{ name, services, want string }{
		{
			"both have endpoints", app("web") + service("page", "", 80) + slice("page", "a", "", 8080, "172.16.1.2"),
			backend + " s_172-16-1-1_8080 s_172-16-1-2_8080.backup\n",
		},
		{
			"the default has another endpoint",
			app("web") + service("page", "", 80) + slice("page", "a", "", 8080, "172.16.1.3"),
			backend + " s_172-16-1-1_8080 s_172-16-1-3_8080.backup\n",
		},
		{
			"the default has another port", app("web") + service("page", "x", 80) + slice("page", "a", "x", 81, "172.16.1.3"),
			backend + " s_172-16-1-1_8080 s_172-16-1-3_81.backup\n",
		},
		{
			"the default is gone", app("web"),
			backend + " s_172-16-1-1_8080\nproblem Ingress default/i ServiceNotFound\n",
		},
		{
			"no other endpoints", service("web", "http", 80) + service("page", "x", 80) + slice("page", "a", "x", 81, "172.16.1.3"),
			backend + " s_172-16-1-3_81.backup\n",
		},
		{
			"no other Service", service("page", "x", 80) + slice("page", "a", "x", 81, "172.16.1.3"),
			"prefix a.test/ -> default_ing_i_svc_web_80\nbackend default_ing_i_svc_web_80: s_172-16-1-3_81.backup\n" +
				"problem Ingress default/i ServiceNotFound\n",
		},
	} {
		s := snapshot(t, Unnamed, tt.services+ingress("i", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]"))
		s.Ingresses[0].Annotations = map[string]string{"sallyport.dev/default-backend": "page"}
		r := c.Compile([]Snapshot{s})
		if diff := cmp.Diff(tt.want, read(r)); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", tt.name, diff)
		}
		if err := r.Config.Validate(); err != nil {
			t.Error(err)
		}
		for _, b := range r.Config.Backends {
			for _, server := range b.Servers {
				if is := server.Addr.String() != "172.16.1.1:8080"; server.Backup != is {
					t.Errorf("%s: server %s is a backup: %v", tt.name, server.Name, server.Backup)
				}
			}
			if !slices.Contains(b.Directives, haproxy.Option("allbackups", true)) {
				t.Errorf("%s: %q", tt.name, b.Directives)
			}
		}
	}
}
