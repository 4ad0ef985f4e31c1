package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"sallyport/test/rig"
)

// changing returns what happens without an attacker when victim changes its own objects: a client
// comes at the moment that is the worst for victim.
func changing() []attack {
	return []attack{
		{
			by: "client", tries: "asks for a path while a guard is added to it that another path has already",
			promise: "it is closed as soon as by a guard that no other path has",
			holds:   guardsAsAnother,
		},
		{
			by: "client", tries: "asks 200 times a second while a Deployment goes from 20 pods to 3",
			promise: "no request fails",
			lab:     shrinks,
		},
	}
}

// guardsAsAnother adds guards to paths that are served: the allow-list that victim's guarded-admin
// has, and for comparison one that nothing has.
func guardsAsAnother(ctx context.Context, s *testbed) (err error) {
	open := func(name string, said ...string) string {
		return ingressOf("victim", name, said, rule(name+".test", path("/", "app")))
	}
	both := open("alone") + open("shared")
	defer func() { err = errors.Join(err, s.Delete(ctx, both), s.seen(ctx)) }()
	if err := errors.Join(s.Apply(ctx, both), s.seen(ctx)); err != nil {
		return err
	}
	closes := func(name, list string) (took time.Duration, err error) {
		r := request{host: name + ".test"}
		if err := errors.Join(s.gets(ctx, "200 victim", r), s.Apply(ctx, open(name, "allow-list: "+list))); err != nil {
			return 0, err
		}
		began := time.Now()
		err = s.eventually(ctx, func() error { return s.gets(ctx, "403", r) })
		return time.Since(began), err
	}
	control, err := closes("alone", "10.98.0.0/16")
	if err != nil {
		return err
	}
	took, err := closes("shared", "10.99.0.0/16")
	// A reload may come between. What only a repetition brings fails the lab, too (rig.Close).
	if err == nil && took > control+3*time.Second {
		err = fmt.Errorf("a path is open for %s if another has its guard, and for %s if none has", took, control)
	}
	return err
}

// A stream counts requests to a host that a pod of victim does not answer.
type stream struct {
	mu           sync.Mutex
	sent, failed int
	first        error
	stop         func()
}

// stream sends requests on new connections, and others on connections that it keeps, until stop is
// called.
func (s *testbed) stream(ctx context.Context, host string, perSecond, kept int) *stream {
	all := new(stream)
	ctx, cancel := context.WithCancel(ctx)
	var senders sync.WaitGroup
	all.stop = func() {
		cancel()
		senders.Wait()
	}
	senders.Go(func() {
		for tick := time.NewTicker(time.Second / time.Duration(perSecond)); ctx.Err() == nil; <-tick.C {
			senders.Go(func() {
				got, err := s.ask(ctx, request{host: host})
				if err == nil && !strings.HasPrefix(got.String(), "200 victim") {
					err = errors.Join(fmt.Errorf("got %.200s", got), got.err)
				}
				all.count(ctx, err)
			})
		}
	})
	for range kept {
		senders.Go(func() {
			transport := &http.Transport{DialContext: s.dialHTTP}
			defer transport.CloseIdleConnections()
			client := http.Client{Transport: transport, Timeout: patience}
			for tick := time.NewTicker(time.Second); ctx.Err() == nil; <-tick.C {
				got, err := client.Get("http://" + host + "/") //nolint:noctx // it has a limit
				if err == nil {
					_, err = io.Copy(io.Discard, got.Body) // else the connection is not kept
					if err = errors.Join(err, got.Body.Close()); got.StatusCode != http.StatusOK {
						err = errors.New(got.Status)
					}
				}
				all.count(ctx, err)
			}
		})
	}
	return all
}

func (a *stream) count(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // the request was ended by stop
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent++
	if err != nil {
		a.failed++
		if a.first == nil {
			a.first = err
		}
	}
}

// end stops the stream, and returns an error if a request failed.
func (a *stream) end() error {
	a.stop()
	if a.failed > 0 || a.sent == 0 {
		return fmt.Errorf("%d of %d requests failed; the first: %w", a.failed, a.sent, a.first)
	}
	return nil
}

// shrinks scales a Deployment of victim from 20 pods to 3, under load, three times.
func shrinks(ctx context.Context, s *testbed, r *rig.Rig) (err error) {
	const host, most, least, rounds = "many.test", 20, 3, 3
	objects := rig.App{Namespace: "victim", Name: "many", Replicas: most}.Manifest() +
		rig.Service("victim", "many", "many") + ingressOf("victim", "many", nil, rule(host, path("/", "many")))
	if err := s.Apply(ctx, objects); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Delete(ctx, objects)) }()
	scale := func(n int) error {
		_, err := r.Kubectl(ctx, "scale", "-n", "victim", "deployment/many", fmt.Sprintf("--replicas=%d", n))
		return errors.Join(err, s.open(ctx, r, "many", n))
	}
	for round := range rounds {
		if err := scale(most); err != nil {
			return err
		}
		load := s.stream(ctx, host, 200, 100)
		if err := errors.Join(scale(least), load.end()); err != nil {
			return fmt.Errorf("round %d of %d: %w", round+1, rounds, err)
		}
	}
	return nil
}

// open waits until a Service of victim has this many servers that are open for traffic, and the
// Deployment of its name has no more pods.
func (s *testbed) open(ctx context.Context, r *rig.Rig, service string, want int) error {
	return rig.Eventually(ctx, "the pods of "+service+" serve", func() error {
		status, err := r.Status(ctx)
		if err != nil {
			return err
		}
		open := 0
		for _, b := range status.Backends {
			if strings.Contains(b.Name, "_"+service+"_") {
				open += b.Open
			}
		}
		pods, err := r.Kubectl(ctx, "get", "pods", "-n", "victim", "-l", "app="+service, "-o", "name")
		if n := len(strings.Fields(pods)); err == nil && (open != want || n != want) {
			err = fmt.Errorf("%d servers are open, and there are %d pods, want %d", open, n, want)
		}
		return err
	})
}

// replaced replaces the only pod of an application of victim, which answers requests meanwhile.
func (s *testbed) replaced(ctx context.Context, r *rig.Rig) (err error) {
	const host = "replaced.test"
	objects := rig.App{Namespace: "victim", Name: "replaced"}.Manifest() +
		rig.Service("victim", "replaced", "replaced") +
		ingressOf("victim", "replaced", nil, rule(host, path("/", "replaced")))
	defer func() { err = errors.Join(err, s.Delete(ctx, objects)) }()
	if err := s.Apply(ctx, objects); err != nil {
		return err
	}
	served := func() error { return s.gets(ctx, "200 victim", request{host: host}) }
	if err := s.eventually(ctx, served); err != nil {
		return err
	}
	load := s.stream(ctx, host, 20, 0)
	_, err = r.Kubectl(ctx, "rollout", "restart", "-n", "victim", "deployment/replaced")
	if err == nil {
		_, err = r.Kubectl(ctx, "rollout", "status", "-n", "victim", "deployment/replaced")
	}
	err = errors.Join(err, s.open(ctx, r, "replaced", 1), served())
	if e := load.end(); e != nil {
		err = errors.Join(err, fmt.Errorf("while a pod of victim is replaced: %w", e))
	}
	return err
}

// dialHTTP connects a client of package http to the appliance.
func (s *testbed) dialHTTP(ctx context.Context, _, _ string) (net.Conn, error) {
	return s.Dial(ctx, applianceAddr+":80")
}
