package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"sallyport/test/rig"
)

// An attack is a case: who tries what, and what holds all the same. Beside what
// it looks at itself, the answers that clients get from victim stay byte for
// byte the same, and what victim adds meanwhile is served.
type attack struct {
	by      string // tenant, client, pod, node, peer, neighbour
	tries   string
	promise string

	config  string                                        // lines that the operator's ConfigMap has meanwhile, "key: value"
	objects func(*stage) string                           // manifests that are there meanwhile
	holds   func(context.Context, *stage) error           // nil: what holds for all is enough
	lab     func(context.Context, *stage, *rig.Rig) error // in the place of holds, where HAProxy is not enough to show it
}

func (a attack) name() string { return a.by + " " + a.tries }

// A house is what is attacked: an appliance in a lab, or the two halves of one
// that need none, the compiler of objects and HAProxy.
type house interface {
	Apply(ctx context.Context, manifest string) error
	// Try is Apply but for what the API server itself refuses.
	Try(ctx context.Context, manifest string) error
	Delete(ctx context.Context, manifest string) error
	// Dial connects a client to a port of the appliance.
	Dial(ctx context.Context, port string) (net.Conn, error)
	// Pod is the address of a pod of a Deployment.
	Pod(ctx context.Context, namespace, deployment string) (string, error)
	// Worker is the process id of HAProxy's worker.
	Worker(ctx context.Context) (int, error)
	// Told is what users are told of an object, as "Reason: why" lines.
	Told(ctx context.Context, kind, namespace, name string) (string, error)
}

// A stage is a house with victim in it.
type stage struct {
	house
	*keys
	patience time.Duration // how long to wait for what is to come
	before   []string      // answers to baseline
	pod      string        // address of victim's
	rounds   int
	rig      *rig.Rig // nil: there is no lab
}

// enter brings victim's objects, waits until they are served, and notes how.
func enter(ctx context.Context, h house, k *keys, patience time.Duration) (*stage, error) {
	s := &stage{house: h, keys: k, patience: patience}
	if err := errors.Join(h.Apply(ctx, defaults("")), h.Apply(ctx, k.world())); err != nil {
		return nil, err
	}
	if err := s.note(ctx); err != nil {
		return nil, err
	}
	var err error
	s.pod, err = h.Pod(ctx, "victim", "app")
	return s, err
}

// Addresses, as in every lab.
const (
	clientAddr    = "192.168.50.10"
	applianceAddr = "192.168.50.21"
	nodeAddr      = "192.168.50.22"
)

// note notes the answers to baseline, once they are what they are meant to be.
func (s *stage) note(ctx context.Context) error {
	return s.eventually(ctx, func() error {
		s.before = nil
		for _, b := range s.baseline() {
			got, err := s.ask(ctx, b.request)
			if err == nil && !strings.HasPrefix(got.String(), b.want) {
				err = fmt.Errorf("want %s, got %s", b.want, got)
			}
			if err != nil {
				return fmt.Errorf("before any attack: %s: %w", b.request, err)
			}
			s.before = append(s.before, got.String())
		}
		return nil
	})
}

// unharmed holds the answers to what they were.
func (s *stage) unharmed(ctx context.Context) error {
	var errs []error
	for i, b := range s.baseline() {
		got, err := s.ask(ctx, b.request)
		if err == nil && got.String() != s.before[i] {
			err = change(s.before[i], got.String())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", b.request, err))
		}
	}
	return errors.Join(errs...)
}

// change tells two answers apart, by the lines that differ.
func change(was, is string) error {
	a, b := strings.Split(was, "\n"), strings.Split(is, "\n")
	if len(a) != len(b) {
		return fmt.Errorf("victim's answer was %q, and is %q", was, is)
	}
	var errs []error
	for i := range a {
		if a[i] != b[i] {
			errs = append(errs, fmt.Errorf("victim's answer was %q, and is %q", a[i], b[i]))
		}
	}
	return errors.Join(errs...)
}

// play lets the attack begin, holds it to its promise, and ends it.
func (s *stage) play(ctx context.Context, a attack) (err error) {
	if a.config != "" {
		if err := s.Apply(ctx, defaults(a.config)); err != nil {
			return err
		}
		defer func() {
			err = errors.Join(err, s.Apply(ctx, defaults("")), s.seen(ctx), s.note(ctx))
		}()
		if err := s.seen(ctx); err != nil {
			return err
		}
	}
	if a.lab != nil {
		a.holds = func(ctx context.Context, s *stage) error { return a.lab(ctx, s, s.rig) }
	}
	objects := ""
	if a.objects != nil {
		objects = a.objects(s)
	}
	if objects == "" {
		return errors.Join(a.holds(ctx, s), s.harmless(ctx, a))
	}
	defer func() {
		if gone := errors.Join(s.Delete(ctx, objects), s.seen(ctx), s.harmless(ctx, a)); gone != nil {
			err = errors.Join(err, fmt.Errorf("afterwards: %w", gone))
		}
	}()
	if err := s.Try(ctx, objects); err != nil {
		return err
	}
	if err := s.seen(ctx); err != nil {
		return err
	}
	if a.holds != nil {
		err = a.holds(ctx, s)
	}
	return errors.Join(err, s.harmless(ctx, a))
}

// harmless holds what unharmed does, unless the operator's ConfigMap says something else than at
// the beginning: then it is for the attack to say what has to be.
func (s *stage) harmless(ctx context.Context, a attack) error {
	if a.config != "" {
		return nil
	}
	return s.unharmed(ctx)
}

// seen waits until a new Ingress of victim is served, and then until it is so no
// more: victim was not stopped. It sets something, so it has a backend of its own,
// which takes a reload: all that was said before has been acted on by then.
func (s *stage) seen(ctx context.Context) error {
	s.rounds++
	host := fmt.Sprintf("round%d.test", s.rounds)
	manifest := ingressOf("victim", fmt.Sprintf("round%d", s.rounds), []string{fmt.Sprintf("timeout-server: %ds", 100+s.rounds)}, rule(host, path("/", "app")))
	r := request{host: host, cert: &s.victim.client, https: true}
	served := func(want bool) error {
		err := s.eventually(ctx, func() error {
			got, err := s.ask(ctx, r)
			if err == nil && (got.pod == "victim") != want {
				err = fmt.Errorf("got %s", got)
			}
			return err
		})
		if err != nil && want {
			err = fmt.Errorf("a new Ingress of victim is not served: %w", err)
		} else if err != nil {
			err = fmt.Errorf("an Ingress of victim is served though it is gone: %w", err)
		}
		return err
	}
	if err := s.Apply(ctx, manifest); err != nil {
		return err
	}
	err := served(true)
	return errors.Join(err, s.Delete(ctx, manifest), served(false))
}

// eventually asks until the answer is no error, as long as the stage is patient.
func (s *stage) eventually(ctx context.Context, ask func() error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.patience, fmt.Errorf("not within %s", s.patience))
	defer cancel()
	var last error
	err := rig.Eventually(ctx, "", func() error {
		if err := ask(); err != nil {
			if ctx.Err() == nil || last == nil {
				last = err
			}
			return last
		}
		return nil
	})
	if err != nil && last != nil {
		return last
	}
	return err
}

// cost returns the processor time that HAProxy's worker takes for something.
func (s *stage) cost(ctx context.Context, do func() error) (time.Duration, error) {
	pid, err := s.Worker(ctx)
	if err != nil {
		return 0, err
	}
	before, err := rig.CPU(pid)
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := rig.CPU(pid)
	return after - before, err
}
