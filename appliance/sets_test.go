package appliance

import (
	"maps"
	"testing"

	"sallyport/appliance/config"
	"sallyport/appliance/plan"
	"sallyport/appliance/status"
	"sallyport/ingress/input"
)

func TestTheFileAndTheClusterItselfSetItsShare(t *testing.T) {
	for name, tt := range map[string]struct {
		blue, green config.Cluster
		percent     map[string]int
		want        map[string]plan.Share
		drained     map[string]bool
	}{
		"nothing is set": {},
		"weights": {
			blue: config.Cluster{Weight: 95}, green: config.Cluster{Weight: 5},
			want: map[string]plan.Share{"blue": {Weight: 95, Percent: 100}, "green": {Weight: 5, Percent: 100}},
		},
		"the cluster lowers its weight": {
			blue: config.Cluster{Weight: 1}, green: config.Cluster{Weight: 1}, percent: map[string]int{"green": 50},
			want: map[string]plan.Share{"blue": {Weight: 1, Percent: 100}, "green": {Weight: 1, Percent: 50}},
		},
		"the cluster lowers the part of each pod": {
			percent: map[string]int{"green": 50},
			want:    map[string]plan.Share{"blue": {Percent: 100}, "green": {Percent: 50}},
		},
		"the cluster wants nothing": {
			percent: map[string]int{"green": 0}, drained: map[string]bool{"green": true},
			want: map[string]plan.Share{"blue": {Percent: 100}, "green": {}},
		},
		"the file drains": {green: config.Cluster{State: config.Drained}, drained: map[string]bool{"green": true}},
	} {
		t.Run(name, func(t *testing.T) {
			tt.blue.Name, tt.green.Name, tt.blue.Set, tt.green.Set = "blue", "green", "both", "both"
			var l loop
			l.cfg = &config.Config{Clusters: []config.Cluster{tt.blue, tt.green, {Name: "alone"}}}
			v := new(status.View)
			v.Compiled.Percent = tt.percent
			if got := l.shares(v); !maps.Equal(got, tt.want) || got == nil != (tt.want == nil) {
				t.Errorf("the shares are %v, want %v", got, tt.want)
			}
			if got := l.drained(v); !maps.Equal(got, tt.drained) {
				t.Errorf("drained are %v, want %v", got, tt.drained)
			}
		})
	}
}

func TestOneReadyServerIsEnoughUnlessTheFileSetsMore(t *testing.T) {
	var l loop
	l.cfg = &config.Config{Clusters: []config.Cluster{
		{Name: "blue", Set: "both", MinReady: config.MinReady{Servers: 2}},
		{Name: "green", Set: "both", MinReady: config.MinReady{Percent: 50}},
		{Name: "red", Set: "both", MinReady: config.MinReady{Servers: 1}},
		{Name: "white", Set: "both"},
	}}
	want := map[string]plan.Least{"blue": {Servers: 2}, "green": {Percent: 50}}
	if got := l.least(); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for i, counts := range []bool{false, true, false, false} {
		if got := OptionsOf(&l.cfg.Clusters[i], input.Pools{}).InSet.CountUnready; got != counts {
			t.Errorf("cluster %s counts endpoints that are not ready: %t", l.cfg.Clusters[i].Name, got)
		}
	}
}
