package ingress_test

import (
	"strings"
	"testing"

	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/input"
	"sallyport/ingress/nginx"
	"sallyport/ingress/survey"
)

// doors returns an Ingress that asks a path, and another one that has the path.
func doors(t *testing.T, url, door string, set map[string]string, host string, paths ...string) input.Snapshot {
	t.Helper()
	s := ingress.SnapshotOf(t, "c", ingress.AppText("web")+ingress.AppText("door")+
		ingress.IngressText("app", 2020, "rules: ["+ingress.RuleText("a.test", ingress.PathText("/", "Prefix", "web"))+"]")+
		ingress.IngressText("door", 2021, "rules: ["+ingress.RuleText(host, paths...)+"]"))
	s.Ingresses[0].Spec.IngressClassName, s.Ingresses[1].Spec.IngressClassName = new("nginx"), new("nginx")
	s.Ingresses[0].Annotations = map[string]string{nginx.Prefix + "auth-url": url}
	s.Ingresses[1].Annotations = set
	s.Ingresses[1].Namespace = door
	s.Options.Nginx = nginx.Options{Classes: []string{"nginx"}, Controllers: []string{"k8s.io/ingress-nginx"}}
	return s
}

func TestAPathIsAskedThroughItsService(t *testing.T) {
	const itself = "https://$host/oauth2/auth?x=y"
	begin := func(at string) string { return ingress.PathText(at, "ImplementationSpecific", "door") }
	for name, tt := range map[string]struct {
		url       string
		namespace string // of the Ingress with the path
		set       map[string]string
		host      string
		paths     []string
		want      string // the rule that asks, or why there is none
	}{
		"a prefix of the same host": {
			url: itself, paths: []string{begin("/oauth2")}, want: "c__default_auth_svc_door_80 * GET '/oauth2/auth?x=y'",
		},
		"the longest path": {
			url: itself, paths: []string{ingress.PathText("/oauth2", "Prefix", "web"), ingress.PathText("/oauth2/auth", "Exact", "door")},
			want: "c__default_auth_svc_door_80 * GET '/oauth2/auth?x=y'",
		},
		"a path of another host": {
			url: "https://in.test/oauth2/auth", host: "in.test", paths: []string{begin("/")},
			want: "c__default_auth_svc_door_80 in.test GET '/oauth2/auth'",
		},
		"a path of a wildcard host": {
			url: "https://in.up.test/oauth2/auth", host: "*.up.test", paths: []string{begin("/oauth2/")},
			want: "c__default_auth_svc_door_80 in.up.test GET '/oauth2/auth'",
		},
		"a rule for any host, which another namespace may take the host from": {
			url: "https://in.test/oauth2/auth", host: "any", paths: []string{begin("/oauth2")},
			want: "no Ingress here serves path",
		},
		"no path": {
			url: itself, paths: []string{begin("/oauth3")}, want: "but for Ingress default/app, which serves every path",
		},
		"a path of a stranger's Ingress": {
			url: "https://in.test/oauth2/auth", host: "in.test", namespace: "evil", paths: []string{begin("/oauth2")},
			want: "Service evil/door is in another namespace, and not in the list",
		},
		"a host that nobody has": {
			url: "https://idp.test/x", paths: []string{begin("/x")}, want: `no Ingress here serves path "/x" of idp.test`,
		},
		"a path that is rewritten": {
			url: itself, paths: []string{begin("/oauth2/(.*)")}, set: map[string]string{nginx.Prefix + "rewrite-target": "/$1"},
			want: "with nginx.ingress.kubernetes.io/rewrite-target, and the Service would be asked without it",
		},
		"a path that is guarded itself": {
			url: itself, paths: []string{begin("/oauth2")}, set: map[string]string{nginx.Prefix + "auth-url": itself},
			want: "with nginx.ingress.kubernetes.io/auth-url, and the Service would be asked without it",
		},
		"a canary": {
			url: itself, paths: []string{begin("/oauth2")}, set: map[string]string{nginx.Prefix + "canary": "true"},
			want: "but for Ingress default/app, which serves every path",
		},
		"an expression": {
			url: itself, paths: []string{begin("/OAuth[0-9]/")}, set: map[string]string{nginx.Prefix + "use-regex": "true"},
			want: "c__default_auth_svc_door_80 * GET '/oauth2/auth?x=y'",
		},
	} {
		t.Run(name, func(t *testing.T) {
			switch tt.host {
			case "":
				tt.host = "a.test"
			case "any":
				tt.host = ""
			}
			if tt.namespace == "" {
				tt.namespace = "default"
			}
			s := doors(t, tt.url, tt.namespace, tt.set, tt.host, tt.paths...)
			var c ingress.Compiler
			c.Judge(haproxy.Verdicts{haproxy.LuaSupport().Part(): haproxy.Good})
			r := c.Compile([]input.Snapshot{s})
			if err := r.Config.Validate(); err != nil {
				t.Error(err)
			}
			got := ""
			for _, b := range r.Config.Backends {
				if b.Name != "c__default_ing_app_svc_web_http" {
					continue
				}
				for _, d := range b.Directives {
					if _, rule, asks := strings.Cut(d.String(), "lua.sallyport_ask "); asks {
						got += rule
					} else if d == haproxy.Close() {
						got += "closed\n"
					}
				}
			}
			for _, p := range r.Problems {
				if p.Name == "app" {
					got += p.Why + "\n"
				}
			}
			if !strings.Contains(got, tt.want) || strings.Contains(got, "closed") == strings.Contains(tt.want, "GET") {
				t.Errorf("want %q, got\n%s\n%s", tt.want, got, ingress.ReadText(r))
			}
			one := survey.Of(r, "c", survey.FromNginx).Ingresses[0]
			if lost := one.Annotations[0].Verdict == nginx.Lost; lost == strings.Contains(tt.want, "GET") {
				t.Errorf("the Survey says %+v", one)
			}
		})
	}
}

// TestAnAskedPathFollowsItsIngress changes who has the path while the Ingress that asks stays the same object.
func TestAnAskedPathFollowsItsIngress(t *testing.T) {
	for _, url := range []string{"https://$host/oauth2/auth", "https://in.test/oauth2/auth"} {
		host := "a.test"
		if !strings.Contains(url, "$") {
			host = "in.test"
		}
		s := doors(t, url, "default", nil, host, ingress.PathText("/oauth2", "Prefix", "door"))
		var c ingress.Compiler
		c.Judge(haproxy.Verdicts{haproxy.LuaSupport().Part(): haproxy.Good})
		all := s.Ingresses
		other := all[1].DeepCopy()
		other.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Name = "web"
		closed := all[1].DeepCopy()
		closed.Annotations = map[string]string{nginx.Prefix + "rewrite-target": "/x"}
		for i, now := range []*struct{ door int }{{0}, {1}, {2}, {3}, {0}, {2}, {1}} {
			s.Ingresses = all[:1:1]
			switch now.door {
			case 1:
				s.Ingresses = append(s.Ingresses, all[1])
			case 2:
				s.Ingresses = append(s.Ingresses, other)
			case 3:
				s.Ingresses = append(s.Ingresses, closed)
			}
			var afresh ingress.Compiler
			afresh.Judge(haproxy.Verdicts{haproxy.LuaSupport().Part(): haproxy.Good})
			want, got := afresh.Compile([]input.Snapshot{s}), c.Compile([]input.Snapshot{s})
			if w, g := told(want), told(got); w != g {
				t.Errorf("%s, step %d: want\n%s\ngot\n%s", url, i, w, g)
			}
		}
	}
}

// told returns a Result with the directives of its backends.
func told(r ingress.Result) string {
	text := ingress.ReadText(r)
	for _, b := range r.Config.Backends {
		text += b.Name + "\n"
		for _, d := range b.Directives {
			text += "  " + d.String() + "\n"
		}
	}
	for _, p := range r.Problems {
		text += p.Name + ": " + p.Why + "\n"
	}
	return text
}

// TestWhatNeedsALostGuardIsLost has a page to sign in at beside a guard that cannot be kept.
func TestWhatNeedsALostGuardIsLost(t *testing.T) {
	s := ingress.OfNginx(t, map[string]string{
		"auth-url": "https://idp.test/auth", "auth-signin": "https://idp.test/start", "auth-signin-redirect-param": "to",
	}, ingress.PathText("/", "Prefix", "web"))
	v := survey.Of(ingress.Compile([]input.Snapshot{s}), "c", survey.FromNginx)
	for _, a := range v.Ingresses[0].Annotations {
		if a.Verdict != nginx.Lost || a.Guard != (a.Name == "auth-url") {
			t.Errorf("%+v", a)
		}
	}
	if v.LostGuards() != 1 {
		t.Errorf("%d guards are lost", v.LostGuards())
	}
}
