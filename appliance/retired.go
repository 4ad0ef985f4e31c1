package appliance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/plan"
	"sallyport/appliance/status"
	"sallyport/haproxy"
	"sallyport/routes"
)

// retired are the clusters that `sallyport drain --cluster` drains, and since when. A file keeps them, so
// that neither a restart of the process nor a reboot of the machine ends a drain. It keeps the last order about
// each cluster, also one that ended a drain: the members of a group share their orders (merge). The methods are
// safe for concurrent use, and a nil retired has no cluster.
type retired struct {
	path string

	mu   sync.Mutex
	last map[string]order // by cluster
}

// endedPrefix stands before the name of a cluster in the file if its drain has ended.
const endedPrefix = "undrained "

// openRetired reads the drains of an earlier process. It always returns a usable value. After an error
// no cluster is drained.
func openRetired(stateDir string) (*retired, error) {
	r := &retired{path: filepath.Join(stateDir, "drained-clusters"), last: map[string]order{}}
	f, err := haproxy.OpenRegular(r.path, 1<<16)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	defer f.Close() //nolint:errcheck // only read
	all := map[string]time.Time{}
	if err := json.NewDecoder(f).Decode(&all); err != nil {
		return r, fmt.Errorf("%s: %w", r.path, err)
	}
	for name, at := range all {
		cluster, ended := strings.CutPrefix(name, endedPrefix)
		r.last[cluster] = order{cluster, !ended, at}
	}
	return r, nil
}

// get returns since when a cluster has been drained by command, or the zero time.
func (r *retired) get(cluster string) time.Time {
	if r == nil {
		return time.Time{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if last := r.last[cluster]; last.drained {
		return last.at
	}
	return time.Time{}
}

// begin begins the drain of a cluster. The drain is in force even if begin returns an error.
func (r *retired) begin(cluster string, now time.Time) error {
	return r.change(func() bool {
		last := r.last[cluster]
		if last.drained {
			return false
		}
		r.last[cluster] = order{cluster, true, after(now, last.at)}
		return true
	})
}

// end ends the drain of a cluster, also at members of the group that this appliance does not hear now. After an
// error the drain may come back with the next process.
func (r *retired) end(cluster string, now time.Time) error {
	return r.change(func() bool {
		r.last[cluster] = order{cluster, false, after(now, r.last[cluster].at)}
		return true
	})
}

// after returns the time of a new order, in whole milliseconds as orders are passed on. It is now, or just after
// the last order: the clock of the member that gave that one may be ahead.
func after(now, last time.Time) time.Time {
	if now = now.Truncate(time.Millisecond); now.After(last) {
		return now
	}
	return last.Add(time.Millisecond)
}

// only forgets the orders about all clusters but those to keep.
func (r *retired) only(keep func(cluster string) bool) error {
	if r == nil {
		return nil
	}
	return r.change(func() bool {
		before := len(r.last)
		maps.DeleteFunc(r.last, func(name string, _ order) bool { return !keep(name) })
		return len(r.last) < before
	})
}

// change calls do, and replaces the file in one step if do reports a change.
func (r *retired) change(do func() bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !do() {
		return nil
	}
	all := make(map[string]time.Time, len(r.last))
	for name, last := range r.last {
		if !last.drained {
			name = endedPrefix + name
		}
		all[name] = last.at
	}
	err := haproxy.Replace(r.path, 0o600, func(to io.Writer) error { return json.NewEncoder(to).Encode(all) })
	if err != nil {
		return fmt.Errorf("the order is in force, but a restart of sallyport forgets it: %w", err)
	}
	return nil
}

// ClusterDrainStatus is the answer of the control socket about the drain of a cluster.
type ClusterDrainStatus struct {
	Cluster     string `json:"cluster"`
	Draining    bool   `json:"draining"`
	Drained     bool   `json:"drained"`         // HAProxy sends no new requests where another cluster serves
	Alone       int    `json:"alone,omitempty"` // Services that it goes on serving, because no other cluster does
	Connections int    `json:"connections"`     // TCP connections to its drained pods that are in use
	Group       string `json:"group,omitempty"` // of this appliance; its members follow the order
	// members of the group that this appliance does not hear now; they follow once it hears them again
	Silent []string `json:"silent,omitempty"`
	Error  string   `json:"error,omitempty"` // of the last round
}

// retirement serves the orders about clusters on the control socket:
//
//	GET  /cluster/drain?cluster=NAME    ClusterDrainStatus as JSON
//	POST /cluster/drain?cluster=NAME    drains the cluster; partial=true: even if it alone serves a Service,
//	                                    which it then goes on serving
//	POST /cluster/undrain?cluster=NAME  ends the drain
func retirement(
	view func() *status.View, drains *retired, heldTo func(map[routes.End]bool) (int, error), knock func(),
	now func() time.Time,
) http.Handler {
	mux := http.NewServeMux()
	order := func(pattern string, act func(v *status.View, c *config.Cluster, r *http.Request) (int, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			v := view()
			c, why := inSet(v.Settings.Config, r.FormValue("cluster"))
			if why != "" {
				http.Error(w, why, http.StatusNotFound)
				return
			}
			if code, err := act(v, c, r); err != nil {
				http.Error(w, err.Error(), code)
				return
			}
			s, err := drainOf(view(), c.Name, !drains.get(c.Name).IsZero(), heldTo)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			writeJSON(w, s)
		})
	}
	refusal := func(v *status.View, c *config.Cluster, r *http.Request) error {
		alone := v.ServedOnlyBy(c.Name)
		if len(alone) == 0 || r.FormValue("partial") == "true" {
			return nil
		}
		return fmt.Errorf("no other cluster has a ready server for %s; --partial drains the rest, and cluster %s goes "+
			"on serving these", status.Few(alone, named), c.Name)
	}
	order("GET /cluster/drain", func(v *status.View, c *config.Cluster, r *http.Request) (int, error) {
		if r.FormValue("dry") != "true" {
			return 0, nil
		}
		return http.StatusConflict, refusal(v, c, r)
	})
	order("POST /cluster/drain", func(v *status.View, c *config.Cluster, r *http.Request) (int, error) {
		if err := refusal(v, c, r); err != nil {
			return http.StatusConflict, err
		}
		defer knock()
		return http.StatusInternalServerError, drains.begin(c.Name, now())
	})
	order("POST /cluster/undrain", func(_ *status.View, c *config.Cluster, _ *http.Request) (int, error) {
		defer knock()
		if err := drains.end(c.Name, now()); err != nil {
			return http.StatusInternalServerError, err
		}
		if c.State == config.Drained {
			return http.StatusConflict, fmt.Errorf("the configuration file drains cluster %s: set clusters[].state to "+
				"active, and reload", c.Name)
		}
		return 0, nil
	})
	return mux
}

// inSet returns the cluster of that name, or why it cannot be drained.
func inSet(cfg *config.Config, name string) (*config.Cluster, string) {
	var names []string
	for i := range cfg.Clusters {
		c := &cfg.Clusters[i]
		names = append(names, c.Name)
		switch {
		case c.Name != name:
		case c.Set == "":
			return nil, fmt.Sprintf("cluster %s is in no set, so no other cluster takes over: set clusters[].set", name)
		default:
			return c, ""
		}
	}
	return nil, fmt.Sprintf("the configuration file has no cluster %q; it has %s", name, strings.Join(names, ", "))
}

// inUse returns how many connections to these pods are in use: those of the kernel, which also has those of
// old workers of HAProxy, without those that HAProxy keeps for later requests.
func (e *edges) inUse(ends map[routes.End]bool) (int, error) {
	held, err := e.kernel.HeldTo(ends)
	if held == 0 || err != nil {
		return 0, err
	}
	idle, err := e.proxy.Idle(func(at netip.AddrPort, source netip.Addr) bool {
		return ends[routes.End{From: source, To: at}]
	})
	return max(0, held-idle), err
}

// drainOf returns the state of a cluster's drain. The view may be older than the order.
func drainOf(
	v *status.View, name string, draining bool, heldTo func(map[routes.End]bool) (int, error),
) (s ClusterDrainStatus, err error) {
	s = ClusterDrainStatus{
		Cluster: name, Draining: draining, Alone: len(v.ServedOnlyBy(name)), Group: v.Settings.Config.Group.Name,
	}
	if v.Group != nil {
		for _, m := range v.Group.Members {
			if !m.Self && !m.Alive {
				s.Silent = append(s.Silent, m.Name)
			}
		}
	}
	if v.Err != nil {
		s.Error = v.Err.Error()
	}
	pending := slices.ContainsFunc(v.Steps, func(step plan.Step) bool {
		set, is := step.(plan.SetServer)
		return is && set.Why == plan.Drained
	})
	s.Drained = draining && v.Want.Drained[name] && !pending && v.Err == nil
	ends := map[routes.End]bool{}
	for _, b := range v.Want.Backends {
		for i, live := range v.Have.Backends.Get(b.Name).Match(b.Servers) {
			if i >= 0 && live != nil && live.State == haproxy.Drain && b.ClusterOf(&b.Servers[i]) == name {
				ends[plan.EndOf(*live)] = true
			}
		}
	}
	s.Connections, err = heldTo(ends)
	return s, err
}

// named bounds the Services in the sentence that refuses a drain.
const named = 5
