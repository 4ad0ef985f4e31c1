package plan

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/haproxy"
	"sallyport/routes"
)

const (
	block1, node1 = "172.16.171.64/26", "192.168.50.23"
	block2, node2 = "172.16.189.64/26", "192.168.50.24"
)

// haveOf reads the actual state from lines "BACKEND ADDRESS STATE CHECK". Two blocks
// have a route, 192.168.50.23 needs none, and any other address has none.
func haveOf(t *testing.T, lines ...string) Have {
	t.Helper()
	have := Have{
		Routes: routes.Table{
			routes.To(netip.MustParsePrefix(block1)): netip.MustParseAddr(node1),
			routes.To(netip.MustParsePrefix(block2)): netip.MustParseAddr(node2),
		},
		Direct: map[netip.Addr]bool{netip.MustParseAddr(node1): true},
	}
	states := map[string]haproxy.State{}
	for state := haproxy.Absent; state <= haproxy.Open; state++ {
		states[state.String()] = state
	}
	backends := map[string]*haproxy.LiveBackend{}
	for _, line := range lines {
		words := strings.Fields(line)
		state, known := states[words[2]]
		if !known {
			t.Fatalf("%q is not a state", words[2])
		}
		b := backends[words[0]]
		if b == nil {
			b = &haproxy.LiveBackend{}
			backends[words[0]] = b
		}
		b.Servers = append(b.Servers,
			haproxy.Live{Name: words[1], Addr: netip.MustParseAddrPort(words[1]), State: state, Check: words[3]})
	}
	have.Backends = haproxy.NewLiveBackends(backends)
	return have
}

func ends(list string) map[routes.End]bool {
	set := map[routes.End]bool{}
	for end := range strings.FieldsSeq(list) {
		set[routes.End{To: netip.MustParseAddrPort(end)}] = true
	}
	return set
}

func textOf(set map[routes.End]bool) string {
	var list []string
	for end := range set {
		list = append(list, end.To.String())
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func TestServersAreForsakenOnlyWhenCheckAndKernelAgree(t *testing.T) {
	const up2 = "web 172.16.189.66:80 open UP"
	for name, row := range map[string]struct {
		have []string
		mute string
		want string
	}{
		"nothing fails": {
			[]string{"web 172.16.171.66:80 open UP", up2},
			"172.16.171.66:80",
			"",
		},
		"a check fails alone": {[]string{"web 172.16.171.66:80 open DOWN", up2}, "", ""},
		"an end is mute alone": {
			[]string{"web 172.16.171.66:80 open UP", up2},
			"172.16.171.66:80",
			"",
		},
		"both": {
			[]string{"web 172.16.171.66:80 open DOWN", up2},
			"172.16.171.66:80",
			"172.16.171.66:80",
		},
		"both, and the server drains": {
			[]string{"web 172.16.171.66:80 drain DOWN", up2},
			"172.16.171.66:80",
			"172.16.171.66:80",
		},
		"a closed server was no server before": {
			[]string{"web 172.16.171.66:80 closed DOWN", up2},
			"172.16.171.66:80",
			"",
		},
		"no other server passes its check": {[]string{
			"web 172.16.171.66:80 open DOWN",
			"web 172.16.189.66:80 open DOWN",
		}, "172.16.171.66:80", ""},
		"the other server drains": {[]string{
			"web 172.16.171.66:80 open DOWN",
			"web 172.16.189.66:80 drain UP",
		}, "172.16.171.66:80", ""},
		"the other server is another backend's": {[]string{
			"web 172.16.171.66:80 open DOWN",
			"api 172.16.189.66:80 open UP",
		}, "172.16.171.66:80", ""},
		"a mute end is not a server any more": {
			[]string{"web 172.16.171.66:80 open DOWN", up2},
			"172.16.171.99:80",
			"",
		},
		"a mute end is the node's BGP port": {[]string{"web 172.16.171.66:80 open DOWN", up2}, "192.168.50.23:179", ""},
		"one mute end speaks for its whole node": {
			[]string{"web 172.16.171.66:80 open DOWN", "web 172.16.171.67:80 open DOWN", up2},
			"172.16.171.66:80",
			"172.16.171.66:80 172.16.171.67:80",
		},
		"a server on the node passes its check": {
			[]string{"web 172.16.171.66:80 open DOWN", "web 172.16.171.67:80 open UP", up2},
			"172.16.171.66:80",
			"172.16.171.66:80",
		},
		"a server that needs no route": {
			[]string{"web 192.168.50.23:80 open DOWN", up2},
			"192.168.50.23:80",
			"192.168.50.23:80",
		},
		"servers without a route share no hop": {[]string{
			"web 10.0.0.1:80 open DOWN", "web 10.0.0.2:80 open DOWN",
			up2,
		}, "10.0.0.1:80", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var d Doubt
			have := haveOf(t, row.have...)
			d.Update(have, time.Unix(0, 0))
			if got := textOf(d.Forsaken(have, ends(row.mute))); got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

func TestADoubtIsFreshForAWhileAfterTheLastServerBeganToFail(t *testing.T) {
	const (
		fails1, fails2 = "web 172.16.171.66:80 open DOWN", "web 172.16.189.66:80 open DOWN"
		up1, up2       = "web 172.16.171.66:80 open UP", "web 172.16.189.66:80 open UP"
	)
	var d Doubt
	now := time.Unix(0, 0)
	for _, moment := range []struct {
		name  string
		later time.Duration
		have  []string
		want  bool
	}{
		{"all pass", 0, []string{up1, up2}, false},
		{"one begins to fail", time.Minute, []string{fails1, up2}, true},
		{"it still fails", DoubtLasts, []string{fails1, up2}, true},
		{"it fails for long", 1, []string{fails1, up2}, false},
		{"another begins to fail", time.Minute, []string{fails1, fails2}, true},
		{"both pass", 1, []string{up1, up2}, false},
		{"the first fails again", 1, []string{fails1, up2}, true},
	} {
		now = now.Add(moment.later)
		d.Update(haveOf(t, moment.have...), now)
		if got := d.Fresh(now); got != moment.want {
			t.Errorf("%s: got fresh %v, want %v", moment.name, got, moment.want)
		}
	}
}

func TestAClosedServerIsStrandedWhenItsRouteChanges(t *testing.T) {
	for name, row := range map[string]struct {
		have  string
		after string // next hops of the first block, and of a longer prefix in it
		want  string
	}{
		"its route stays":        {"web 172.16.171.66:80 closed DOWN", node1 + " -", ""},
		"its route goes":         {"web 172.16.171.66:80 closed DOWN", "- -", "172.16.171.66:80"},
		"its route turns":        {"web 172.16.171.66:80 closed DOWN", node2 + " -", "172.16.171.66:80"},
		"a longer route comes":   {"web 172.16.171.66:80 closed DOWN", node1 + " " + node1, "172.16.171.66:80"},
		"it is open":             {"web 172.16.171.66:80 open UP", "- -", ""},
		"it drains":              {"web 172.16.171.66:80 drain UP", "- -", ""},
		"it had no route":        {"web 10.0.0.1:80 closed DOWN", "- -", ""},
		"it never needed routes": {"web 192.168.50.23:80 closed DOWN", "- -", ""},
	} {
		t.Run(name, func(t *testing.T) {
			have := haveOf(t, row.have)
			after := maps.Clone(have.Routes)
			hops := strings.Fields(row.after)
			for i, p := range prefixes(block1, "172.16.171.66/32") {
				delete(after, routes.To(p))
				if hops[i] != "-" {
					after[routes.To(p)] = netip.MustParseAddr(hops[i])
				}
			}
			if got := textOf(Stranded(have, after)); got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}
