package appliance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport/appliance/group"
	"sallyport/haproxy"

	"sallyport/appliance/status"

	"sallyport/appliance/pages"
)

// A drain is the wish that this appliance leaves its group.
type drain struct {
	Boot   string    `json:"boot"` // of the machine, by bootID
	Since  time.Time `json:"since"`
	Forced bool      `json:"forced,omitempty"` // even if no other member is full
}

// drains keeps the drain in a file, so that a restart of the process does not end it. A
// reboot does: an appliance that was updated comes back by itself. Its methods are safe
// for concurrent use.
type drains struct {
	path    string
	boot    string              // empty if no drain is kept in the file
	leaving func(time.Duration) // called when a stop begins to drain, with group.drain.timeout; may be nil

	mu   sync.Mutex
	wish *drain // nil without a drain
}

// bootID returns Linux's identifier of this boot of the machine, or "" if it cannot be read.
func bootID() string {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text))
}

// openDrains returns the drain that an earlier process of this boot kept.
func openDrains(stateDir, boot string) *drains {
	d := &drains{path: filepath.Join(stateDir, "drain"), boot: boot}
	f, err := haproxy.OpenRegular(d.path, 4096)
	if err != nil {
		return d
	}
	defer f.Close() //nolint:errcheck // only read
	var wish drain
	if err := json.NewDecoder(f).Decode(&wish); err == nil && boot != "" && wish.Boot == boot {
		d.wish = &wish
	}
	return d
}

// get returns the drain in force, or nil without a drain.
func (d *drains) get() *drain {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.wish
}

// begin begins a drain. If kept is set, the drain outlives a restart of the process. The drain is
// in force even if begin returns an error.
func (d *drains) begin(now time.Time, forced, kept bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	wish := drain{d.boot, now, forced}
	if d.wish != nil {
		wish.Since, wish.Forced = d.wish.Since, forced || d.wish.Forced
	}
	d.wish = &wish
	if !kept {
		return nil
	}
	if err := d.save(wish); err != nil {
		return fmt.Errorf("the appliance drains, but a restart of sallyport ends that: %w", err)
	}
	return nil
}

// save replaces the file in one step.
func (d *drains) save(wish drain) error {
	return haproxy.Replace(d.path, 0o600, func(to io.Writer) error { return json.NewEncoder(to).Encode(wish) })
}

// end ends the drain. After an error it may come back with the next process.
func (d *drains) end() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wish = nil
	if err := os.Remove(d.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the appliance serves again, but a restart of sallyport drains it: %w", err)
	}
	return nil
}

// DrainStatus is the answer of the control socket.
type DrainStatus struct {
	Group       string        `json:"group"`
	Draining    bool          `json:"draining"`
	Class       group.Class   `json:"class"`
	Why         string        `json:"why,omitempty"`
	Left        bool          `json:"left"`        // it drains and announces nothing; HAProxy ends its connections
	Connections int           `json:"connections"` // TCP connections to the service addresses
	Timeout     time.Duration `json:"timeoutNanoseconds"`
	Error       string        `json:"error,omitempty"` // of the last round
}

// control serves the orders of the control socket:
//
//	GET  /drain    DrainStatus as JSON
//	POST /drain    drains; force=true: even if no other member is full; stopping=true:
//	               the same, and only until the process ends
//	POST /undrain  ends the drain
//	GET  /group    GroupStatus as JSON; in no group one without members
//
// Every user that may connect may give all these orders: the socket has mode 0600. In no group
// there is nothing to drain, and a stop goes on without it.
func control(view func() *status.View, drains *drains, held func([]netip.Addr) (int, error), knock func(),
	now func() time.Time,
) http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter) {
		v := view()
		g := v.Settings.Config.Group
		s := DrainStatus{
			Group: g.Name, Draining: drains.get() != nil, Class: v.Fit.Class, Why: v.Fit.Why,
			Timeout: g.Drain.Timeout,
		}
		// The view may be older than the wish.
		s.Left = s.Draining && v.Left
		var err error
		if s.Connections, err = held(slices.Concat(g.Addresses, recorded(v.Compiled.Balancers))); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if v.Err != nil {
			s.Error = v.Err.Error()
		}
		writeJSON(w, s)
	}
	inGroup := func(pattern string, handle http.HandlerFunc) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case view().Settings.Config.Group.Exists():
				handle(w, r)
			case r.FormValue("stopping") == "true":
				writeJSON(w, DrainStatus{})
			default:
				http.Error(w, "this appliance is in no group, so no other one takes over", http.StatusNotFound)
			}
		})
	}
	inGroup("GET /drain", func(w http.ResponseWriter, _ *http.Request) { answer(w) })
	inGroup("POST /drain", func(w http.ResponseWriter, r *http.Request) {
		stopping := r.FormValue("stopping") == "true"
		forced := stopping || r.FormValue("force") == "true"
		if why := view().Alone(); why != "" && !forced {
			http.Error(w, why+"; --force drains all the same, and nobody serves then", http.StatusConflict)
			return
		}
		if stopping && drains.leaving != nil {
			drains.leaving(view().Settings.Config.Group.Drain.Timeout)
		}
		err := drains.begin(now(), forced, !stopping)
		knock()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answer(w)
	})
	inGroup("POST /undrain", func(w http.ResponseWriter, _ *http.Request) {
		err := drains.end()
		knock()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answer(w)
	})
	mux.HandleFunc("GET /group", func(w http.ResponseWriter, _ *http.Request) {
		v := view()
		g := v.Group
		switch {
		case g != nil:
		case !v.Settings.Config.Group.Exists():
			g = &status.GroupStatus{}
		default:
			http.Error(w, "the appliance has only just started", http.StatusServiceUnavailable)
			return
		}
		writeJSON(w, g)
	})
	return mux
}

// serveControl listens on the control socket until ctx ends.
func serveControl(ctx context.Context, path string, h http.Handler, log *slog.Logger) {
	// This removes the socket of an earlier process. Two processes never share HAProxy's run
	// directory.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Error("the control socket cannot be replaced; sallyport drain does not work", "path", path, "err", err)
		return
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		log.Error("the control socket cannot be opened; sallyport drain does not work", "path", path, "err", err)
		return
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		log.Error("the control socket broke; sallyport drain does not work", "path", path, "err", err)
	}
}

// buttons takes the orders of the buttons, and leads back to a page that shows their effect.
func buttons(last func() *status.View, drains *drains, knock func(), now func() time.Time) http.Handler {
	mux := http.NewServeMux()
	order := func(path string, act func(*status.View) (then string, err error)) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			v := last()
			if !v.Settings.Config.Group.Exists() {
				http.Error(w, "this appliance is in no group", http.StatusNotFound)
				return
			}
			then, err := act(v)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			knock()
			http.Redirect(w, r, then, http.StatusSeeOther)
		})
	}
	order(pages.DrainPath, func(v *status.View) (string, error) {
		if v.Alone() != "" {
			return pages.DrainPath, nil // the page says why not
		}
		return "/", drains.begin(now(), false, true)
	})
	order(pages.UndrainPath, func(*status.View) (string, error) { return "/", drains.end() })
	return mux
}
