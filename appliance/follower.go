package appliance

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/picture"
	"sallyport/appliance/status"
	"sallyport/ingress"
	"sallyport/ingress/input"
	"sallyport/routes"
)

// A follower follows the configuration file. It holds the settings in use. For them it opens and
// closes a watcher for each cluster, and the status endpoint. The goroutine of the loop owns it.
type follower struct {
	settings
	clusters []*cluster
	file     status.ConfigStatus
	log      *slog.Logger
	now      func() time.Time
	changes  *status.Timeline
	knock    chan<- struct{} // for the watchers

	atStart  *config.Config                                         // the configuration of the start
	load     func() (*config.Config, error)                         // reads the configuration file
	again    <-chan os.Signal                                       // asks for a call of load; may be nil
	reloaded func()                                                 // called after the file was read again
	level    *slog.LevelVar                                         // the level of the log; nil if it cannot change
	open     func(context.Context, source, routes.Topology) watcher // opens a watcher until the context ends
	serve    func(config.Status) (end func())                       // serves the status endpoint
	close    func()                                                 // ends the status endpoint

	pictures *picture.Store
	crashed  *quarantine
	retired  *retired
}

// readFile reads the configuration file again, and returns the new settings. Live keys take effect
// in the next round. Other keys wait for a restart. A file with a mistake changes nothing.
func (f *follower) readFile() (s settings, ok bool) {
	file, err := f.load()
	var waiting []string
	if err == nil {
		var next *config.Config
		next, waiting = f.atStart.Next(file)
		s, err = settingsOf(next)
	}
	if err != nil {
		f.file.Errors = strings.Split(err.Error(), "\n")
		f.log.Error("the configuration file has a mistake; the configuration in use stays", "err", err)
		f.changes.Add(status.Change{
			At: f.now(), Kind: status.ConfigChange, Bad: true,
			What: "the configuration file has a mistake; the configuration in use stays", Why: err.Error(),
		})
		return settings{}, false
	}
	f.file = status.ConfigStatus{Read: f.now(), Waiting: waiting}
	f.log.Info("configuration file read again", "clusters", len(s.sources))
	f.changes.Add(status.Change{At: f.now(), Kind: status.ConfigChange, What: "configuration file read again"})
	for _, warning := range s.cfg.Warnings {
		f.log.Warn("configuration", "warning", warning)
	}
	for _, sentence := range waiting {
		f.log.Warn("a changed key needs a restart", "key", sentence)
	}
	return s, true
}

// set replaces the settings, and adapts the level of the log and the status endpoint to them.
func (f *follower) set(s settings) {
	was := f.settings
	f.settings = s
	err := f.retired.only(func(name string) bool {
		return slices.ContainsFunc(s.sources, func(of source) bool { return of.Name == name && of.Set != "" })
	})
	if err != nil {
		f.log.Error("the drain of a cluster that left its set comes back with the next process", "err", err)
	}
	if f.level != nil {
		f.level.Set(s.cfg.Log.Level)
	}
	if was.cfg == nil || was.cfg.Status.Listen != s.cfg.Status.Listen ||
		was.cfg.Status.TLS.Exists() != s.cfg.Status.TLS.Exists() {
		if f.close != nil {
			f.close()
		}
		f.close = f.serve(s.cfg.Status)
	}
}

// opened is a watcher and the settings that it was opened for.
type opened struct {
	of      source // as watched returns it
	watcher watcher
	close   context.CancelFunc
}

// follow opens and closes clusters until they are those of the settings. A cluster with changed
// settings keeps its watcher until a second watcher, with the new settings, has read the whole
// cluster. A cluster that was removed from the file stays until every other cluster is known
// (look), because it may only have changed its name.
func (f *follower) follow(ctx context.Context) {
	gone := f.clusters
	f.clusters = nil
	for _, s := range f.sources {
		var c *cluster
		want := s.watched()
		if i := slices.IndexFunc(gone, func(c *cluster) bool { return c.name == s.Name }); i >= 0 {
			c = gone[i]
			gone = slices.Delete(gone, i, i+1)
			if !c.known && !reflect.DeepEqual(c.of, want) {
				c.close() // nothing of the cluster is served
				c = nil
			}
		}
		switch {
		case c == nil:
			c = f.remember(s)
			c.opened = f.openWatcher(ctx, want, c.snapshot.Topology)
		case c.next != nil && reflect.DeepEqual(c.next.of, want):
		default:
			c.abandon()
			if !reflect.DeepEqual(c.of, want) {
				next := f.openWatcher(ctx, want, c.snapshot.Topology)
				c.next = &next
			}
		}
		c.peering, c.gone = s.BGP, false
		f.clusters = append(f.clusters, c)
	}
	for _, c := range gone {
		if !c.known {
			f.drop(c)
			continue
		}
		c.abandon()
		c.gone = true
		f.clusters = append(f.clusters, c)
	}
}

// drop stops the watcher of a cluster that is gone from the configuration.
func (f *follower) drop(c *cluster) {
	c.close()
	f.pictures.Forget(c.name)
	f.log.Info("the cluster was removed from the configuration, and is no longer served", "cluster", c.name)
}

// abandon stops the watcher with newer settings, if the cluster has such a watcher.
func (c *cluster) abandon() {
	if c.next != nil {
		c.next.close()
		c.next = nil
	}
}

// turn replaces the watcher by the watcher with newer settings, once that has read the whole
// cluster.
func (c *cluster) turn() {
	if c.next == nil {
		return
	}
	if _, err := c.next.watcher.Snapshot(); err != nil {
		return
	}
	c.close()
	c.opened, c.next = *c.next, nil
	c.told, c.toldOf = ingress.Result{}, input.Snapshot{} // the new watcher has published nothing yet
}

// openWatcher opens a watcher, and passes its knocks on to the loop.
func (f *follower) openWatcher(ctx context.Context, s source, before routes.Topology) opened {
	ctx, end := context.WithCancel(ctx)
	w := f.open(ctx, s, before)
	go relay(ctx, w.Changed(), f.knock)
	return opened{s, w, end}
}

// remember returns a cluster that was not watched before. Its last good picture is used
// until the API answers.
func (f *follower) remember(s source) *cluster {
	c := &cluster{name: s.Name}
	pic, err := f.pictures.Load(s.Name)
	switch {
	case err == nil:
		c.snapshot, c.known, c.pictured = pic.Snapshot, true, pic.Taken
		f.crashed.begin(s.Name, pic.Snapshot.Objects)
		f.log.Info("the last good picture is in use until the API answers", "cluster", s.Name, "taken", pic.Taken)
	case !errors.Is(err, fs.ErrNotExist):
		f.log.Warn("the last good picture cannot be loaded", "cluster", s.Name, "err", err)
	}
	// The options for reading objects come from the configuration file, not from the
	// picture.
	c.snapshot.Options, c.snapshot.Topology.HostNetwork = OptionsOf(&s.Cluster, s.pools), s.Ingress.HostNetwork
	return c
}

// keep hands the snapshot of each live cluster over to be saved, with its Result.
func (f *follower) keep(r ingress.Result) {
	if f.crashed.trying() {
		return
	}
	for _, c := range f.clusters {
		if c.live {
			f.pictures.Keep(c.snapshot, r)
		}
	}
}
