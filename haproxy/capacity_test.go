package haproxy

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

func TestCapacityIsNearItsLimitFromFourFifths(t *testing.T) {
	for name, c := range map[string]struct {
		capacity  Capacity
		near, far bool
		amount    string
	}{
		"nothing":            {Capacity{Used: 0, Limit: 20}, false, true, "0 of 20 (0 %)"},
		"three quarters":     {Capacity{Used: 15, Limit: 20}, false, false, "15 of 20 (75 %)"},
		"four fifths":        {Capacity{Used: 16, Limit: 20}, true, false, "16 of 20 (80 %)"},
		"more than there is": {Capacity{Used: 50, Limit: 20}, true, false, "50 of 20 (250 %)"},
		"memory":             {Capacity{Resource: "memory", Used: 3 << 30, Limit: 4 << 30}, false, false, "3072 of 4096 MiB (75 %)"},
	} {
		if got := c.capacity.Amount(); got != c.amount || c.capacity.Near() != c.near || c.capacity.Far() != c.far {
			t.Errorf("%s: got %q, near %v, far %v", name, got, c.capacity.Near(), c.capacity.Far())
		}
	}
}

func TestTheRoomIsDescribed(t *testing.T) {
	for name, c := range map[string]struct {
		room       Room
		configured int
		want       string
	}{
		"enough open files":                     {Room{2 << 30, 524288}, 0, "10485 connections with up to 2011272 servers, 10485 connections with up to 1571364 servers"},
		"few open files":                        {Room{2 << 30, 4096}, 0, "1348 connections with up to 3600 servers, 449 connections with up to 10788 servers; the memory holds 10485 connections, which need a limit of 28468 open files (LimitNOFILE, ulimit -Hn), now 4096"},
		"few open files for what is configured": {Room{2 << 30, 4096}, 3000, "1348 connections with up to 3600 servers, 449 connections with up to 10788 servers; 3000 connections are configured, which need a limit of 8508 open files (LimitNOFILE, ulimit -Hn), now 4096"},
	} {
		if got := c.room.Describe(c.configured); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, c.want)
		}
	}
	for _, connections := range []int{1000, 10_485, 999_999} {
		if got := (Room{Files: uint64(filesFor(connections))}).Connections(0, connections); got != connections {
			t.Errorf("the files for %d connections suffice for %d", connections, got)
		}
	}
}

func TestTheWorkerAndTheMachineTellWhatIsInUse(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		arrived, answer := make(chan struct{}), make(chan struct{})
		slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			close(arrived)
			<-answer
		}))
		defer slow.Close()
		defer close(answer)
		cfg := r.config(backend("app", serverAt(slow.Listener.Addr())))
		cfg.Tune.MaxConn = 123
		r.settle(cfg, states(cfg, Open))
		go func() { _, _ = r.try("app.test", "/") }()
		<-arrived
		r.p.mu.Lock()
		pic, err := r.p.worker.look()
		all := r.p.capacity(pic, procs{old: []int{1, 2}})
		r.p.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		for resource, want := range map[string]Capacity{
			"connections":            {Used: 1, Limit: 123},
			"ports to one pod":       {Used: 1},
			"old workers of HAProxy": {Used: 2, Limit: 20},
			"memory":                 {},
		} {
			i := slices.IndexFunc(all, func(c Capacity) bool { return c.Resource == resource })
			if i < 0 {
				t.Errorf("%s: unknown", resource)
				continue
			}
			if got := all[i]; want.Used > 0 && got.Used != want.Used || want.Limit > 0 && got.Limit != want.Limit || got.Used == 0 || got.Limit <= got.Used || strings.TrimSpace(got.Remedy) == "" {
				t.Errorf("%s: got %+v, want %+v", resource, got, want)
			}
		}
		if got := len(r.p.Info().Capacity); got < 4 {
			t.Errorf("Info has %d capacities", got)
		}
	})
}
