package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/input"
	"sallyport/test/load"
	"sallyport/test/rig"
)

var reloadRows = []row{
	{17, "processor time and lost requests of a new host under load, beside nginx, Caddy and Traefik", alone, newHosts},
}

const (
	// hostsBefore is the number of hosts before the first new one.
	hostsBefore = 1000
	// newHostsEach is how many new hosts each side gets, one in each changeEvery.
	newHostsEach = 5
	changeEvery  = time.Second
)

// A changer is a side that gets new hosts under load.
type changer struct {
	*side
	add func(host string) error // serves one more host, soon after it returns

	own time.Duration // processor time of what changes the side, if that is not the side itself

	// What was measured: the processor time of one host, without that of the requests, all requests meanwhile, and how
	// long each host took until it was served.
	cost time.Duration
	lost load.Count
	took []time.Duration
}

// newHosts measures what one more host costs each side, beside 500 requests a second: half on connections of their own,
// half on kept ones.
func newHosts(ctx context.Context, b *bench) error {
	return b.onStages(ctx, func(s *stage) error {
		all, err := s.changers(ctx)
		if err != nil {
			return err
		}
		for _, c := range all {
			if err := c.measure(ctx); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
		for _, f := range []struct {
			what, unit string
			of         func(c *changer) float64
		}{
			{"processor time of a new host", "ms", func(c *changer) float64 { return 1000 * c.cost.Seconds() }},
			{"new host → first 200, p50", "ms", func(c *changer) float64 { return percentile(c.took, 0.5) }},
			{"requests failed", "", func(c *changer) float64 { return float64(len(c.lost.Failed)) }},
			{"kept connections closed before an answer", "", func(c *changer) float64 { return float64(len(c.lost.Broken)) }},
		} {
			for _, c := range all[1:] {
				b.add(value(f.what+", HAProxy "+s.version, f.of(all[0]), f.unit).beside(c.name, f.of(c)))
			}
		}
		return nil
	})
}

// changers starts the sides, each with the same hosts.
func (s *stage) changers(ctx context.Context) ([]*changer, error) {
	hosts := hostsOf(hostsBefore)
	ours, err := s.changed(ctx)
	if err != nil {
		return nil, err
	}
	rival, err := s.reloaded(ctx)
	if err != nil {
		return nil, err
	}
	rest, err := others()
	if err != nil {
		return nil, err
	}
	all := []*changer{ours, rival}
	for _, o := range rest {
		p, err := o.start(ctx, s, o.name+"-changed", hosts)
		if err != nil {
			return nil, err
		}
		c := &changer{side: p}
		served := hosts
		c.add = func(host string) error {
			served = append(slices.Clip(served), host)
			return o.renew(ctx, s, p, served)
		}
		all = append(all, c)
	}
	return all, nil
}

// changed returns the HAProxy that the appliance's packages drive. The time of the compiler and the driver is that of
// their thread.
func (s *stage) changed(ctx context.Context) (*changer, error) {
	snapshot := crowd{ingresses: hostsBefore}.snapshot()
	compiler := new(ingress.Compiler)
	cfg, err := compile(compiler, snapshot)
	if err != nil {
		return nil, err
	}
	p, driver, was, err := s.drive(ctx, "sallyport-changed", cfg)
	if err != nil {
		return nil, err
	}
	c := &changer{side: p}
	c.add = func(host string) error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		before, err := ofThread()
		if err != nil {
			return err
		}
		snapshot.Ingresses = append(slices.Clip(snapshot.Ingresses),
			newIngress("with-"+host, host, "app", "/"))
		result := compiler.Compile([]input.Snapshot{snapshot})
		next := *was
		next.Routes, next.Backends = result.Config.Routes, s.withServers(result.Config.Backends, s.pods[:replicas])
		if err := settle(ctx, driver, &next); err != nil {
			return err
		}
		after, err := ofThread()
		c.own += after - before
		return err
	}
	return c, nil
}

// reloaded returns a HAProxy with a hand-written file and map, which its administrator reloads.
func (s *stage) reloaded(ctx context.Context) (*changer, error) {
	cfg, err := compiled(crowd{ingresses: hostsBefore})
	if err != nil {
		return nil, err
	}
	p, err := s.write(ctx, "hand-written-changed", rivalText, cfg)
	if err != nil {
		return nil, err
	}
	p.name, p.worker, p.family = "hand-written", p.master, true
	return &changer{side: p, add: func(host string) error {
		file, err := os.OpenFile(filepath.Join(s.dir, "hand-written-changed", "route.map"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(file, "%s/ default_svc_app_80\n", host)
		return errors.Join(err, file.Close(), syscall.Kill(p.worker, syscall.SIGUSR2))
	}}, nil
}

// renew writes the configuration of a proxy for some hosts, and lets the proxy read it.
func (o another) renew(ctx context.Context, s *stage, p *side, hosts []string) error {
	w := written{
		Dir: filepath.Join(s.dir, o.name+"-changed"), HTTP: p.http, HTTPS: p.https, Pods: s.pods[:replicas], Large: s.large,
	}
	text, err := o.write(w, hosts)
	switch {
	case err != nil || o.name == "traefik": // which watches the file
		return err
	case o.name == "nginx":
		return syscall.Kill(p.worker, syscall.SIGHUP)
	}
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(w.Dir, "admin"))
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1/load", bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "text/caddyfile")
	answer, err := client.Do(request)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = load.Status(answer.StatusCode)
	}
	if answer != nil {
		err = errors.Join(err, answer.Body.Close())
	}
	return err
}

// measure adds hosts under load.
func (c *changer) measure(ctx context.Context) error {
	w := load.Watch(ctx, load.Clients{
		Targets: []string{c.http.String()}, Host: "app.test", New: 4 * time.Millisecond, Kept: 25,
		Every: 100 * time.Millisecond,
	})
	defer w.Stop()
	// span returns the processor time that was used in a second, and the seconds.
	span := func(each func(k int) error) (rate float64, took time.Duration, lost load.Count, err error) {
		before, err := c.whole()
		if err != nil {
			return 0, 0, lost, err
		}
		began := time.Now()
		lost, err = w.During(ctx, 1, 1, func() error {
			for k := range newHostsEach {
				ends := time.Now().Add(changeEvery)
				if err := each(k); err != nil {
					return err
				}
				if err := rig.Pause(ctx, time.Until(ends)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return 0, 0, lost, err
		}
		took = time.Since(began)
		after, err := c.whole()
		return (after - before).Seconds() / took.Seconds(), took, lost, err
	}
	quiet := func(int) error { return nil }
	if _, _, _, err := span(quiet); err != nil { // warms up
		return err
	}
	calm, _, _, err := span(quiet)
	if err != nil {
		return err
	}
	busy, took, lost, err := span(func(k int) error {
		host := fmt.Sprintf("new-%d.bench.test", k)
		began := time.Now()
		if err := c.add(host); err != nil {
			return err
		}
		err := rig.Eventually(ctx, host+" is served", func() error { return answers(ctx, c.http, host) })
		c.took = append(c.took, time.Since(began))
		return err
	})
	more := time.Duration(max(busy-calm, 0) * float64(took))
	c.lost, c.cost = lost, (more+c.own)/newHostsEach
	return err
}

// answers asks for a host once, on a connection of its own.
func answers(ctx context.Context, at netip.AddrPort, host string) error {
	c, err := load.Open(ctx, load.From, at.String(), nil, load.Patience)
	if err != nil {
		return err
	}
	_, err = c.Ask(host, "Connection: close\r\n")
	return errors.Join(err, c.Close())
}

// whole returns the processor time of a side with the processes of its family that have ended.
func (p *side) whole() (time.Duration, error) {
	now, err := p.cpu()
	if err != nil || !p.family {
		return now, err
	}
	spent, err := rig.SpentBy(p.worker)
	return now + spent.Waited, err
}

// ofThread returns the processor time of this thread.
func ofThread() (time.Duration, error) {
	var of unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_THREAD, &of)
	return time.Duration(of.Utime.Nano() + of.Stime.Nano()), err
}

// compile returns the Config of a snapshot, with a compiler that knows all questions of HAProxy.
func compile(compiler *ingress.Compiler, s input.Snapshot) (*haproxy.Config, error) {
	verdicts := haproxy.Verdicts{}
	for _, q := range compiler.Compile([]input.Snapshot{s}).Questions {
		verdicts[q.Part()] = haproxy.Good
	}
	compiler.Judge(verdicts)
	r := compiler.Compile([]input.Snapshot{s})
	if len(r.Problems) > 0 {
		return nil, fmt.Errorf("%d problems, the first: Ingress %s: %s", len(r.Problems), r.Problems[0].Name,
			r.Problems[0].Why)
	}
	return &r.Config, nil
}
