package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"sallyport/test/rig"
)

// An attack is a case: who tries what, and the promise that holds all the same. In every case
// clients get the answers from victim that they got before, byte for byte, and Ingresses that
// victim adds are served.
type attack struct {
	by      string // tenant, client, operator, pod, node, peer, neighbour
	tries   string
	promise string

	config  string                                // lines that the operator's ConfigMap has meanwhile, "key: value"
	objects func(*testbed) string                 // manifests that are there meanwhile
	holds   func(context.Context, *testbed) error // beside the checks of all attacks; may be nil
	lab     labAttack                             // in the place of holds, where HAProxy is not enough to show it
}

// A labAttack does an attack in a lab, and checks its promise.
type labAttack func(context.Context, *testbed, *rig.Rig) error

func (a attack) name() string { return a.by + " " + a.tries }

// A target is an appliance in a lab; or, without a lab, the compiler of objects and HAProxy.
type target interface {
	Apply(ctx context.Context, manifest string) error
	// Try applies a manifest, and ignores that the API server rejects it as invalid.
	Try(ctx context.Context, manifest string) error
	Delete(ctx context.Context, manifest string) error
	// Dial connects a client to an address and port of the appliance.
	Dial(ctx context.Context, address string) (net.Conn, error)
	// Pod returns the address of a pod of a Deployment.
	Pod(ctx context.Context, namespace, deployment string) (string, error)
	// Worker returns the process id of HAProxy's worker.
	Worker(ctx context.Context) (int, error)
	// Told returns the Events about an object, as lines "Reason: why".
	Told(ctx context.Context, kind, namespace, name string) (string, error)
	// Status returns the status of an object of Gateway API.
	Status(ctx context.Context, kind, namespace, name string) (conditions, error)
}

// A testbed is a target with victim in it.
type testbed struct {
	target
	*keys
	patience time.Duration // the longest wait for an answer that is to come
	before   []string      // answers to baseline
	pod      string        // address of victim's
	rounds   int
	rig      *rig.Rig // nil if the attack needs no lab
	two      *rig.Rig // the lab of the second cluster; nil until secondCluster brings it up
}

// enter applies victim's objects, waits until they are served, and records the answers.
func enter(ctx context.Context, h target, k *keys, patience time.Duration) (*testbed, error) {
	s := &testbed{target: h, keys: k, patience: patience}
	if err := errors.Join(h.Apply(ctx, defaults("")), h.Apply(ctx, k.world()), h.Apply(ctx, k.gates())); err != nil {
		return nil, err
	}
	if err := s.note(ctx); err != nil {
		return nil, err
	}
	var err error
	s.pod, err = h.Pod(ctx, "victim", "app")
	return s, err
}

// The addresses of every lab.
const (
	clientAddr    = "192.168.50.10"
	applianceAddr = "192.168.50.21"
	nodeAddr      = "192.168.50.22"
)

// note waits until every answer is as baseline wants it, and the same twice, and records the answers. A
// host may be served a moment before its certificate, so note also waits for each certificate of victim.
func (s *testbed) note(ctx context.Context) error {
	return s.eventually(ctx, func() error {
		last, crts := s.before, make(map[string]string)
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
			if b.request.https && got.crt != "" {
				crts[b.request.host] = got.crt
			}
		}
		for _, host := range []string{"shop.test", "bank.test", "gate.test", "front.test"} {
			if crts[host] == "" || crts[host] == crts["nobody.example"] {
				return fmt.Errorf("before any attack: %s has no certificate of its own", host)
			}
		}
		if !slices.Equal(last, s.before) {
			return errors.New("before any attack: the answers are not the same twice")
		}
		return nil
	})
}

// record records the answers as they are.
func (s *testbed) record(ctx context.Context) error {
	s.before = nil
	for _, b := range s.baseline() {
		got, err := s.ask(ctx, b.request)
		if err != nil {
			return err
		}
		s.before = append(s.before, got.String())
	}
	return nil
}

// unharmed checks that victim's answers are those that note recorded.
func (s *testbed) unharmed(ctx context.Context) error {
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

// change reports the lines in which two answers differ.
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

// run starts the attack, checks its promise, and ends it.
func (s *testbed) run(ctx context.Context, a attack) (err error) {
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
		a.holds = func(ctx context.Context, s *testbed) error { return a.lab(ctx, s, s.rig) }
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

// harmless checks that victim's answers stay, unless the attack changes the operator's ConfigMap:
// then its own check says what the answers have to be.
func (s *testbed) harmless(ctx context.Context, a attack) error {
	if a.config != "" {
		return nil
	}
	return s.unharmed(ctx)
}

// seen adds an Ingress of victim and waits until it is served, then deletes it and waits until it
// is not. The Ingress has a backend of its own, which takes a reload: everything applied before it
// is in effect by then.
func (s *testbed) seen(ctx context.Context) error {
	s.rounds++
	host := fmt.Sprintf("round%d.test", s.rounds)
	manifest := ingressOf("victim", fmt.Sprintf("round%d", s.rounds),
		[]string{fmt.Sprintf("timeout-server: %ds", 100+s.rounds)}, rule(host, path("/", "app")))
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

// eventually repeats ask until it succeeds, for as long as the testbed's patience.
func (s *testbed) eventually(ctx context.Context, ask func() error) error {
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

// cost returns the processor time of HAProxy's worker while do runs.
func (s *testbed) cost(ctx context.Context, do func() error) (time.Duration, error) {
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
