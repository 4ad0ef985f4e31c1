package appliance

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/appliance/config"
	"sallyport/ingress/nginx"
	"sallyport/routes"
)

// other returns another value of a key.
func other(t *testing.T, key string, v reflect.Value) reflect.Value {
	t.Helper()
	o := reflect.New(v.Type()).Elem()
	o.Set(v)
	switch x := v.Interface().(type) {
	case netip.Addr:
		o.Set(reflect.ValueOf(netip.MustParseAddr("192.0.2.77")))
		return o
	case netip.AddrPort:
		o.Set(reflect.ValueOf(netip.MustParseAddrPort("192.0.2.77:77")))
		return o
	case netip.Prefix:
		o.Set(reflect.ValueOf(netip.MustParsePrefix("192.0.2.0/24")))
		return o
	case config.Secret:
		o.Set(reflect.ValueOf(config.NewSecret(x.Reveal() + "x")))
		return o
	case config.TLS:
		certificate, key := selfSigned(t)
		o.Set(reflect.ValueOf(config.TLS{
			Certificate: config.PEM{Inline: config.NewSecret(certificate)},
			Key:         config.PEM{Inline: config.NewSecret(key)},
		}))
		return o
	case config.Kubeconfig:
		o.Set(reflect.ValueOf(config.Kubeconfig{Inline: config.NewSecret("x")}))
		return o
	}
	switch v.Kind() {
	case reflect.String:
		o.SetString(v.String() + "x")
	case reflect.Bool:
		o.SetBool(!v.Bool())
	case reflect.Pointer:
		o.Set(reflect.New(v.Type().Elem())) // nil is another value than any
	case reflect.Int, reflect.Int64:
		o.SetInt(v.Int() + 1)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		o.SetUint(v.Uint() + 1)
	case reflect.Slice:
		element := reflect.New(v.Type().Elem()).Elem()
		if element.Kind() != reflect.Struct || element.Type().PkgPath() == "net/netip" {
			element = other(t, key, element)
		}
		o.Set(reflect.Append(v, element))
	default:
		t.Fatalf("%s: there is no other value of a %s", key, v.Type())
	}
	return o
}

// each yields every key below v that is one value, with its tag change.
func each(v reflect.Value, at, tag string, yield func(key, tag string, v reflect.Value)) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if key == "-" || !f.IsExported() {
			continue
		}
		key, change := strings.TrimPrefix(at+"."+key, "."), tag
		if own, ok := f.Tag.Lookup("change"); ok {
			change = own
		}
		switch f.Type {
		case reflect.TypeFor[[]config.Cluster]():
			each(v.Field(i).Index(0), key+"[0]", change, yield)
			continue
		// a certificate fits its key alone
		case reflect.TypeFor[config.Kubeconfig](), reflect.TypeFor[config.Secret](), reflect.TypeFor[config.TLS]():
		default:
			if f.Type.Kind() == reflect.Struct && strings.HasPrefix(f.Type.PkgPath(), "sallyport/") {
				each(v.Field(i), key, change, yield)
				continue
			}
		}
		yield(key, change, v.Field(i))
	}
}

func TestWhatIsLiveIsInTheSettingsAndNothingElse(t *testing.T) {
	base := filepath.Join(t.TempDir(), "base.cfg")
	if err := errors.Join(os.WriteFile(base, []byte("a"), 0o600),
		os.WriteFile(base+"x", []byte("b"), 0o600)); err != nil {
		t.Fatal(err)
	}
	parse := func() *config.Config {
		c, err := config.Parse("sallyport.yaml",
			[]byte("clusters: [{kubeconfig: /k, bgp: {asn: 65000}}]\nhaproxy: {base: "+base+"}\n"))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := parse()
	was, err := settingsOf(first)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	changed := parse()
	each(reflect.ValueOf(changed).Elem(), "", "", func(key, tag string, v reflect.Value) {
		if strings.HasPrefix(key, "system.") {
			return // it configures the machine, not the process
		}
		keep := reflect.New(v.Type()).Elem()
		keep.Set(v)
		v.Set(other(t, key, v))
		defer v.Set(keep)
		next, _ := first.Next(changed)
		now, err := settingsOf(next)
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		count[tag]++
		if got, want := !reflect.DeepEqual(was, now), tag == "live"; got != want {
			t.Errorf("%s: declared %s, and a change of it changes the settings: %v", key, tag, got)
		}
	})
	if count["live"] < 40 || count["restart"] < 12 {
		t.Errorf("got %v, want dozens of keys", count)
	}
}

// A filed scene is a scene whose clusters come from a configuration file.
type filed struct {
	*scene
	text   string
	api    map[string]*fakeWatcher // from "NAME CLASS" in a cluster's settings to the answers of its API
	opened []context.Context       // of each watcher ever opened, with the name of its cluster
	served string                  // address of the status endpoint
}

type nameOf struct{}

const demoFile = "clusters: [{name: demo, kubeconfig: /k}]\n"

// fileScene returns a scene that serves the one cluster in its file, demo.
func fileScene(t *testing.T) *filed {
	f := &filed{scene: newScene(t), text: demoFile, api: map[string]*fakeWatcher{}}
	f.api["demo haproxy"] = f.watcher
	f.clusters = nil
	f.open = func(ctx context.Context, s source, _ routes.Topology) watcher {
		name := s.Name + " " + s.Ingress.Class
		f.opened = append(f.opened, context.WithValue(ctx, nameOf{}, name))
		if f.api[name] == nil {
			f.api[name] = &fakeWatcher{err: errors.New("connection refused")}
		}
		return f.api[name]
	}
	f.serve = func(at config.Status) (end func()) {
		f.served = at.Listen.String()
		return func() { f.served = "" }
	}
	f.load = func() (*config.Config, error) { return config.Parse("sallyport.yaml", []byte(f.text)) }
	var err error
	if f.atStart, err = f.load(); err != nil {
		t.Fatal(err)
	}
	first, err := settingsOf(f.atStart)
	if err != nil {
		t.Fatal(err)
	}
	f.use(t.Context(), first)
	f.speaker.state = established
	f.speaker.announce(block1, node1)
	f.speaker.announce(block2, node2)
	f.settle(t)
	f.clock = f.clock.Add(time.Hour) // the patience of the start has ended
	f.settle(t)
	f.says(t, "")
	f.stays(t)
	return f
}

// again replaces the file and lets the appliance read it.
func (f *filed) again(t *testing.T, text string) {
	t.Helper()
	f.text = text
	f.reload(t.Context())
	f.settle(t)
}

// says fails the test unless the warnings contain a text. With an empty text, it fails the test if
// there are warnings.
func (f *filed) says(t *testing.T, want string) {
	t.Helper()
	if got := strings.Join(f.view.Load().Warnings, "\n"); want == "" && got != "" || !strings.Contains(got, want) {
		t.Errorf("warnings are %q, want %q", got, want)
	}
}

// stays fails the test unless the cluster is served with both of its peers.
func (f *filed) stays(t *testing.T) {
	t.Helper()
	if got := f.proxy.String(); got != bothOpen {
		t.Errorf("servers %s, want %s", got, bothOpen)
	}
	if len(f.speaker.peers) != 2 {
		t.Errorf("peers %v, want both", f.speaker.peers)
	}
}

// watchers fails the test unless exactly these watchers run.
func (f *filed) watchers(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, ctx := range f.opened {
		if ctx.Err() == nil {
			got = append(got, ctx.Value(nameOf{}).(string))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("watchers %q, want %q", got, want)
	}
}

func TestAFileWithAMistakeChangesNothingAndIsToldUntilAGoodOneIsRead(t *testing.T) {
	f := fileScene(t)
	before := f.settings
	f.again(t, demoFile+"bgp: {retain: long}\n")
	f.says(t, "sallyport.yaml:2: bgp.retain")
	f.stays(t)
	if !reflect.DeepEqual(before, f.settings) {
		t.Error("the settings have changed")
	}
	page, _ := endpoint(f.scene)
	const metric = "sallyport_config_last_reload_successful "
	if _, got := ask(t, page, "/metrics"); !strings.Contains(got, metric+"0") {
		t.Errorf("no line %s0", metric)
	}
	f.again(t, demoFile+"bgp: {retain: 3m}\n")
	f.says(t, "")
	f.stays(t)
	if _, got := ask(t, page, "/metrics"); !strings.Contains(got, metric+"1") || f.cfg.BGP.Retain != 3*time.Minute {
		t.Errorf("no line %s1, or retain is %s, want 3m", metric, f.cfg.BGP.Retain)
	}
	f.watchers(t, "demo haproxy")
}

func TestWhatNeedsARestartWaitsAndTheRestIsInUse(t *testing.T) {
	f := fileScene(t)
	f.again(t, demoFile+"haproxy: {dir: /srv, maxConnections: 1000}\nstatus: {listen: 127.0.0.1:99}\n")
	f.says(t, "sallyport.yaml:2: haproxy.dir: takes effect at the next start")
	f.stays(t)
	if f.cfg.HAProxy.MaxConnections != 1000 || f.view.Load().Config.Tune.MaxConn != 1000 || f.served != "127.0.0.1:99" {
		t.Errorf("maxConnections is %d and the status endpoint at %q, want 1000 and 127.0.0.1:99",
			f.cfg.HAProxy.MaxConnections, f.served)
	}
	f.again(t, demoFile)
	f.says(t, "")
	if f.served != "127.0.0.1:9090" {
		t.Errorf("the status endpoint is at %q, want 127.0.0.1:9090", f.served)
	}
}

func TestAClusterComesAndGoesBesideTheOthers(t *testing.T) {
	f := fileScene(t)
	f.again(t, "clusters: [{name: demo, kubeconfig: /k}, {name: second, kubeconfig: /k}]\n")
	f.stays(t)
	f.watchers(t, "demo haproxy", "second haproxy")
	f.again(t, demoFile)
	f.says(t, "")
	f.stays(t)
	f.watchers(t, "demo haproxy")
}

func TestTheLastOfAClusterThatIsGoneIsItsRoute(t *testing.T) {
	f := fileScene(t)
	second := demoSnapshot("second")
	second.Ingresses, second.Topology.Nodes = nil, nil
	f.api["second haproxy"] = &fakeWatcher{snapshot: second}
	f.again(t, "clusters: [{name: second, kubeconfig: /k}]\n")
	f.watchers(t, "second haproxy")
	if got := f.proxy.String(); got != "" || len(f.kernel.routes) > 0 || len(f.speaker.peers) > 0 {
		t.Errorf("servers %q, routes %v, peers %v; want none", got, f.kernel.routes, f.speaker.peers)
	}
}

func TestAClusterWithAnotherNameIsServedAllTheTime(t *testing.T) {
	f := fileScene(t)
	before := f.view.Load().Config.Backends[0].Name
	f.again(t, "clusters: [{name: renamed, kubeconfig: /k, ingress: {hosts: [{host: test.local, namespaces: "+
		"['*']}]}}]\n")
	if got := f.view.Load().Config.Backends[0].Name; got != before {
		t.Errorf("the backend is %s, want %s as before", got, before)
	}
	f.says(t, "cluster demo: it was removed from the configuration")
	f.stays(t)
	f.watchers(t, "demo haproxy", "renamed haproxy")

	f.api["renamed haproxy"].snapshot, f.api["renamed haproxy"].err = demoSnapshot("renamed"), nil
	for i := range f.speaker.offers {
		f.speaker.offers[i].Cluster = "renamed"
	}
	f.settle(t)
	f.says(t, "")
	f.stays(t)
	f.watchers(t, "renamed haproxy")
}

func TestAClusterWithOtherSettingsIsWatchedAsBeforeUntilItWasReadWithThem(t *testing.T) {
	f := fileScene(t)
	const text = "clusters: [{name: demo, kubeconfig: /k, ingress: {class: other}}]\n"
	f.again(t, text)
	f.says(t, "cluster demo: its new settings take effect once its API has answered: connection refused")
	f.stays(t)
	f.watchers(t, "demo haproxy", "demo other")
	f.again(t, text)
	f.watchers(t, "demo haproxy", "demo other")

	f.watcher.snapshot.Ingresses = nil // the watcher of the start still reports changes
	f.settle(t)
	if got := f.proxy.String(); got != "" {
		t.Errorf("servers %s, want none", got)
	}
	f.api["demo other"].snapshot, f.api["demo other"].err = demoSnapshot("demo"), nil
	f.settle(t)
	f.says(t, "")
	f.stays(t)
	f.watchers(t, "demo other")

	f.again(t, demoFile)
	f.again(t, text)
	f.watchers(t, "demo other")
}

func TestAClusterThatWasNeverKnownIsGivenUpAtOnce(t *testing.T) {
	f := fileScene(t)
	const text = "clusters: [{name: demo, kubeconfig: /k}, {name: second, kubeconfig: /k, ingress: {class: %s, " +
		"hosts: [{host: test.local, namespaces: ['*']}]}}]\n"
	f.again(t, strings.ReplaceAll(text, "%s", "one"))
	f.watchers(t, "demo haproxy", "second one")
	if got := f.proxy.String(); got != "" {
		t.Errorf("servers %s, want none: the host is kept for the other cluster", got)
	}
	f.again(t, strings.ReplaceAll(text, "%s", "two"))
	f.watchers(t, "demo haproxy", "second two")
	f.again(t, demoFile)
	f.says(t, "")
	f.stays(t)
	f.watchers(t, "demo haproxy")
}

func TestOtherSettingsOfTheSessionsAloneOpenNoWatcher(t *testing.T) {
	f := fileScene(t)
	f.again(t, "clusters: [{name: demo, kubeconfig: /k, bgp: {password: x, prefixLimit: 7}}]\n")
	f.says(t, "")
	f.stays(t)
	f.watchers(t, "demo haproxy")
	if got := f.speaker.peers[0]; len(f.opened) != 1 || got.Password != "x" || got.PrefixLimit != 7 || !got.Active {
		t.Errorf("%d watchers were opened, and the peer has the limit %d; want 1, and 7 with a password", len(f.opened),
			got.PrefixLimit)
	}
}

// TestEachGuardOfNginxCanBeGivenUp compares the names that the configuration file takes with the guards.
func TestEachGuardOfNginxCanBeGivenUp(t *testing.T) {
	var guards []string
	for _, row := range nginx.Rows() {
		if row.Guard {
			guards = append(guards, row.Name)
		}
	}
	if !slices.Equal(guards, config.NginxGuards) {
		t.Errorf("guards %q, and the configuration file takes %q", guards, config.NginxGuards)
	}
}
