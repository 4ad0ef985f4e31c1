package config_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/appliance/config"
)

// declared yields each key of a type with the tags change of the key and of those above
// it.
func declared(t reflect.Type, at string, above []string, yield func(key string, tags []string)) {
	for f := range t.Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if key == "-" || !f.IsExported() {
			continue
		}
		key = strings.TrimPrefix(at+"."+key, ".")
		tags := slices.Clip(above)
		if tag, ok := f.Tag.Lookup("change"); ok {
			tags = append(tags, tag)
		}
		inner := f.Type
		if inner.Kind() == reflect.Slice {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct && strings.HasPrefix(inner.PkgPath(), "sallyport/") &&
			inner != reflect.TypeFor[config.Secret]() &&
			inner != reflect.TypeFor[config.Kubeconfig]() && inner != reflect.TypeFor[config.PEM]() &&
			inner != reflect.TypeFor[config.Address]() {
			declared(inner, key, tags, yield)
			continue
		}
		yield(key, tags)
	}
}

func TestEveryKeySaysOnceWhenAChangeOfItTakesEffect(t *testing.T) {
	count := map[string]int{}
	declared(reflect.TypeFor[config.Config](), "", nil, func(key string, tags []string) {
		if len(tags) != 1 || tags[0] != "live" && tags[0] != "restart" {
			t.Errorf("%s has the tags %q; want change:\"live\" or change:\"restart\" once, at the key or around it",
				key, tags)
			return
		}
		count[tags[0]]++
	})
	if count["live"] < 40 || count["restart"] < 10 {
		t.Errorf("got %v, want dozens of keys", count)
	}
}

func TestTheSchemaSaysWhichKeysNeedARestart(t *testing.T) {
	var schema struct {
		Properties map[string]json.RawMessage
		Defs       map[string]struct {
			Properties map[string]struct{ Description string }
		} `json:"$defs"`
	}
	if err := json.Unmarshal(config.Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	said := func(group, key string) bool {
		var p struct{ Description string }
		if group == "" {
			if err := json.Unmarshal(schema.Properties[key], &p); err != nil {
				t.Fatalf("%s: %v", key, err)
			}
		} else {
			p = schema.Defs[group].Properties[key]
		}
		return strings.Contains(p.Description, "A change needs a restart.")
	}
	var walk func(t reflect.Type, group string)
	walk = func(typ reflect.Type, group string) {
		for f := range typ.Fields() {
			key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if key == "-" || !f.IsExported() {
				continue
			}
			tag, ok := f.Tag.Lookup("change")
			if !ok {
				walk(f.Type, f.Type.Name())
				continue
			}
			if got, want := said(group, key), tag == "restart"; got != want {
				t.Errorf("%s %s: its description says that a change needs a restart: %v, want %v", group, key, got,
					want)
			}
		}
	}
	walk(reflect.TypeFor[config.Config](), "")
}

func TestNextTakesWhatIsLiveAndNamesWhatWaits(t *testing.T) {
	parse := func(text string) *config.Config {
		t.Helper()
		c, err := config.Parse("sallyport.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for name, row := range map[string]struct {
		was, now string
		waiting  []string
		want     func(*config.Config) // sets the values that stay as they were
	}{
		"nothing": {was: minimal, now: minimal},
		"another cluster and a longer time to retain": {
			was: minimal,
			now: "clusters:\n- {name: one, kubeconfig: /one}\n- {name: two, kubeconfig: /two}\nbgp: {retain: 3m}\n",
		},
		"another directory of HAProxy, and more connections": {
			was: minimal, now: minimal + "haproxy:\n  dir: /srv/haproxy\n  maxConnections: 1000\n",
			waiting: []string{"sallyport.yaml:4: haproxy.dir: takes effect at the next start of sallyport"},
			want:    func(c *config.Config) { c.HAProxy.Dir = "/var/lib/sallyport/haproxy" },
		},
		"a key that is taken out": {
			was: minimal + "routes: {table: 100}\n", now: minimal,
			waiting: []string{"sallyport.yaml: routes.table: takes effect at the next start of sallyport"},
			want:    func(c *config.Config) { c.Routes.Table = 100 },
		},
		"another AS number, which is that of the cluster too": {
			was: minimal, now: minimal + "bgp: {asn: 65001}\n",
			waiting: []string{"sallyport.yaml:3: bgp.asn: takes effect at the next start of sallyport"},
			want:    func(c *config.Config) { c.BGP.ASN, c.Clusters[0].BGP.ASN = 65000, 65000 },
		},
		"another AS number, and one of the cluster": {
			was:     minimal,
			now:     "clusters:\n- kubeconfig: /etc/sallyport/kubeconfig\n  bgp: {asn: 65001}\nbgp: {asn: 65001}\n",
			waiting: []string{"sallyport.yaml:4: bgp.asn: takes effect at the next start of sallyport"},
			want:    func(c *config.Config) { c.BGP.ASN = 65000 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			was, want := parse(row.was), parse(row.now)
			if row.want != nil {
				row.want(want)
			}
			got, waiting := was.Next(parse(row.now))
			if diff := cmp.Diff(row.waiting, waiting); diff != "" {
				t.Errorf("waiting: want -, got +:\n%s", diff)
			}
			if diff := cmp.Diff(want, got, values); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
			back, waiting := got.Next(was)
			if diff := cmp.Diff(was, back, values); diff != "" || len(waiting) > 0 {
				t.Errorf("back to what it was: waiting %q, want -, got +:\n%s", waiting, diff)
			}
		})
	}
}

func TestWhatTheMachineSaysDoesNotWait(t *testing.T) {
	was, err := config.Parse("sallyport.yaml", []byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	was.BGP.RouterID, was.HAProxy.User = addrs("192.0.2.1")[0], "haproxy"
	now, err := config.Parse("sallyport.yaml", []byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	now.BGP.RouterID = addrs("192.0.2.2")[0]
	if next, waiting := was.Next(now); len(waiting) > 0 || next.BGP.RouterID != was.BGP.RouterID ||
		next.HAProxy.User != "haproxy" {
		t.Errorf("waiting %q, router ID %s, user %q; want nothing, %s and haproxy", waiting, next.BGP.RouterID,
			next.HAProxy.User, was.BGP.RouterID)
	}
}
