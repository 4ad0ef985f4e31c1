package haproxy

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
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
		"memory": {
			Capacity{Resource: "memory", Used: 3 << 30, Limit: 4 << 30},
			false, false,
			"3072 of 4096 MiB (75 %)",
		},
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
		"enough open files": {
			Room{2 << 30, 524288},
			0,
			"10485 connections with up to 2011272 servers, 10485 connections with up to 1571364 servers; a quarter " +
				"of the memory holds 3355443 clients that rate limits count",
		},
		"few open files": {
			Room{2 << 30, 4096},
			0,
			"1348 connections with up to 3600 servers, 449 connections with up to 10788 servers; the memory holds " +
				"10485 connections, which need a limit of 28468 open files (LimitNOFILE, ulimit -Hn), now 4096; a " +
				"quarter of the memory holds 3355443 clients that rate limits count",
		},
		"few open files for what is configured": {
			Room{2 << 30, 4096},
			3000,
			"1348 connections with up to 3600 servers, 449 connections with up to 10788 servers; 3000 connections " +
				"are configured, which need a limit of 8508 open files (LimitNOFILE, ulimit -Hn), now 4096; a " +
				"quarter of the memory holds 3355443 clients that rate limits count",
		},
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

func TestTheTablesOfLimitsAreCountedByTheirSizes(t *testing.T) {
	tables := []Table{{"a", 1000, 0}, {"b", 500, 1}}
	all := Room{Memory: 2 << 30, Files: 4096}.Capacity(7, tables)
	if len(all) != 2 || all[0].Used != 7 || all[1].Used != 1500 || all[1].Limit != 3355443 {
		t.Errorf("got %v", all)
	}
	for name, got := range map[string][]Capacity{
		"no table":        Room{Memory: 2 << 30}.Capacity(0, nil),
		"no memory known": Room{}.Capacity(0, tables),
	} {
		if len(got) > 0 {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func TestAServerIsCheckedAsOftenAsItsOptionsSay(t *testing.T) {
	for want, o := range map[string]ServerOptions{
		"check downinter 1000 error-limit 3 fastinter 500": {Check: true},
		"check downinter 1000 error-limit 3 fastinter 500 inter 500": {
			Check:         true,
			CheckInterval: 500 * time.Millisecond,
		},
		"check downinter 5000 error-limit 3 fastinter 500 inter 10000": {Check: true, CheckInterval: 10 * time.Second},
		"check downinter 4000 error-limit 3 fastinter 2000 inter 8000": {Check: true, Slower: 4},
		"check downinter 2000 error-limit 3 fastinter 1000 inter 1000": {
			Check: true, Slower: 2,
			CheckInterval: 500 * time.Millisecond,
		},
	} {
		words := strings.Fields(serverOptions(o, true))
		for word := range strings.FieldsSeq(want) {
			if !slices.Contains(words, word) {
				t.Errorf("%+v: got %v, want %s", o, words, want)
			}
		}
		if got := slices.Contains(words, "inter"); got != strings.Contains(want, " inter ") {
			t.Errorf("%+v: got %v, want %s", o, words, want)
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
			if got := all[i]; want.Used > 0 && got.Used != want.Used || want.Limit > 0 && got.Limit != want.Limit ||
				got.Used == 0 || got.Limit <= got.Used || strings.TrimSpace(got.Remedy) == "" {
				t.Errorf("%s: got %+v, want %+v", resource, got, want)
			}
		}
		if got := len(r.p.Info().Capacity); got < 4 {
			t.Errorf("Info has %d capacities", got)
		}
	})
}
