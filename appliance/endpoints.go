package appliance

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/metrics"
	"sallyport/appliance/page"
	"sallyport/haproxy"

	"sallyport/appliance/status"

	"sallyport/appliance/pages"
)

// endpoints answer about a loop: the status endpoint in the network, and the control socket on this
// machine. Only the control socket takes every order without a password.
type endpoints struct {
	loop    *loop
	edges   *edges
	samples status.Samples
	pages   http.Handler // what both have
	guarded http.Handler // the status endpoint
}

func newEndpoints(l *loop, e *edges, hooks Hooks) *endpoints {
	n := &endpoints{loop: l, edges: e}
	described := func(by func(haproxy.Info) status.Status) status.Status {
		s := by(e.proxy.Info())
		s.Version, s.Now, s.Started = hooks.Version, time.Now(), l.started
		s.Round.Count = l.counts.Rounds()
		if hooks.Notices != nil {
			s = s.Noticed(hooks.Notices())
		}
		return s
	}
	index := status.Indexed(l.view.Load)
	whole := func() status.Status { return described(index().Status) }
	head := func() status.Status { return described(l.view.Load().Head) }
	explain := func(what url.Values) (any, error) { return index().Explain(what) }
	registry := metrics.Registry(metrics.Source{
		Head: head, Tally: func() status.Tally { return l.view.Load().Tally() },
		Parts: func() map[string]status.Part { return l.view.Load().Parts() }, Loop: &l.counts, Samples: &n.samples,
	})
	site := &page.Site{Page: (&pages.Pages{Index: index, Head: head, Changes: &l.changes, Samples: &n.samples}).Page}
	n.pages = handler(site, whole, head, explain, &l.changes, &n.samples, registry, e.proxy.Metrics)

	fromNetwork := http.NewServeMux()
	fromNetwork.Handle("/", n.pages)
	fromNetwork.Handle("POST /group/", buttons(l.view.Load, l.drains, func() { knock(l.knock) }, time.Now))
	guarded := &guard{
		next: fromNetwork, log: hooks.Log, now: time.Now, wrong: map[netip.Prefix]*guesses{},
		password: func() config.Secret { return l.view.Load().Settings.Config.Status.Password },
		ready:    func() bool { return len(l.view.Load().NotReady) == 0 },
	}
	n.guarded = answering(func() []string { return l.view.Load().Settings.Names }, page.Secured(guarded))
	return n
}

// serve serves the status endpoint until ctx ends or end is called.
func (n *endpoints) serve(ctx context.Context, at config.Status, wg *sync.WaitGroup) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	var certificate func() *tls.Certificate
	if at.TLS.Exists() {
		certificate = func() *tls.Certificate { return n.loop.view.Load().Settings.Certificate }
	}
	wg.Go(func() {
		defer close(ended)
		serveStatus(ctx, at.Listen, certificate, n.guarded, n.loop.log)
	})
	return func() { cancel(); <-ended }
}

// local returns the handler of the control socket.
func (n *endpoints) local() http.Handler {
	l := n.loop
	local := http.NewServeMux()
	local.Handle("/", n.pages)
	orders := control(l.view.Load, l.drains, n.edges.kernel.Held, func() { knock(l.knock) }, time.Now)
	for _, path := range []string{"/drain", "/undrain", "/group"} {
		local.Handle(path, orders)
	}
	local.Handle("/cluster/", retirement(
		l.view.Load, l.retired, n.edges.inUse, func() { knock(l.knock) }, time.Now))
	return local
}

// sample takes a sample of HAProxy's counts and of the open servers at intervals, until ctx ends.
func (n *endpoints) sample(ctx context.Context) {
	open := func() int { return n.loop.view.Load().Tally().Open() }
	n.samples.Run(ctx, n.edges.proxy.Meter().Read, open)
}
