package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sallyport/test/rig"
)

// naming returns the attacks by objects that name Secrets, or that have mistakes: what the
// appliance asks the API server, and writes to it, is shared by all namespaces.
func naming() []attack {
	return []attack{
		{
			by: "tenant", tries: "names 300 new Secrets that do not exist, again and again", lab: renames,
			promise: "changes of others are in effect meanwhile, and their pods are replaced without a failed " +
				"request; a name that no Secret has costs no request",
		},
		{
			by: "tenant", tries: "names 5,000 Secrets that do not exist at once", lab: names5000,
			promise: "a namespace names no more Secrets than its limit; others are served as before",
		},
		{
			by: "tenant", tries: "makes 2,700 mistakes", objects: mistakes, lab: overheard,
			promise: "Events about other namespaces come in between",
		},
	}
}

// namingSecrets returns an Ingress of evil that names some Secrets that do not exist.
func namingSecrets(name string, round, count int) string {
	var tls strings.Builder
	tls.WriteString("  tls:\n")
	for i := range count {
		fmt.Fprintf(&tls, "  - {hosts: [%q], secretName: none-%d-%d}\n", name+"."+evilHost, round, i)
	}
	return ingressOf("evil", name, nil, tls.String(), rule(name+"."+evilHost, path("/", "app")))
}

// renames names new Secrets until an Ingress, a certificate and a guard of victim are in effect, and
// until a pod of victim is replaced.
func renames(ctx context.Context, s *testbed, r *rig.Rig) error {
	before, err := secretLists(ctx, r)
	if err != nil {
		return err
	}
	began := time.Now()
	rounds, err := s.against(ctx, func(round int) string { return namingSecrets("renames", round, 300) }, func() error {
		return errors.Join(s.changes(ctx, "during"), s.replaced(ctx, r))
	})
	if err != nil {
		return fmt.Errorf("after %s and %d names: %w", time.Since(began).Round(time.Second), 300*rounds, err)
	}
	after, err := secretLists(ctx, r)
	if err != nil {
		return err
	}
	// Those of victim's certificate and of the lab's own controllers are among them.
	if asked := after - before; asked > 20 {
		return fmt.Errorf("%d names took %d lists of Secrets", 300*rounds, asked)
	}
	return nil
}

// against applies manifests of evil, one after another without end, while do runs. Afterwards it deletes the
// objects of the last manifest. It returns how many manifests it has applied.
func (s *testbed) against(ctx context.Context, manifest func(round int) string, do func() error) (int, error) {
	attack, stop := context.WithCancel(ctx)
	var evil sync.WaitGroup
	rounds, failed := 0, error(nil)
	evil.Go(func() {
		for attack.Err() == nil && failed == nil {
			rounds++
			if err := s.Apply(attack, manifest(rounds)); attack.Err() == nil {
				failed = err
			}
		}
	})
	err := do()
	stop()
	evil.Wait()
	return rounds, errors.Join(err, failed, s.Delete(ctx, manifest(rounds)))
}

// changes adds an Ingress of victim, one with a new certificate, and guards it. It waits until each
// is in effect.
func (s *testbed) changes(ctx context.Context, name string) error {
	host := name + ".test"
	guard := func(said ...string) string {
		return ingressOf("victim", name, said, withTLS(name, host), rule(host, path("/", "app")))
	}
	defer func() {
		_ = s.Delete(ctx, guard()+s.victim.certificate(name, host))
	}()
	if err := errors.Join(s.seen(ctx), s.Apply(ctx, guard()+s.victim.certificate(name, host))); err != nil {
		return err
	}
	shown := func() error {
		conn, err := s.connect(ctx, request{https: true, host: host})
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // nothing is lost with it
		if got := conn.(*tls.Conn).ConnectionState().PeerCertificates[0].DNSNames; !slices.Contains(got, host) {
			return fmt.Errorf("the certificate of %s is for %q", host, got)
		}
		return s.gets(ctx, "200 victim", request{https: true, host: host})
	}
	if err := s.eventually(ctx, shown); err != nil {
		return fmt.Errorf("a new certificate of victim: %w", err)
	}
	if err := s.Apply(ctx, guard("allow-list: 10.99.0.0/16")); err != nil {
		return err
	}
	if err := s.eventually(ctx, func() error { return s.gets(ctx, "403", request{https: true, host: host}) }); err !=
		nil {
		return fmt.Errorf("a new guard of victim: %w", err)
	}
	return nil
}

// names5000 names 5,000 Secrets in one write.
func names5000(ctx context.Context, s *testbed, r *rig.Rig) (err error) {
	before, err := rig.Resident(r.Pid())
	if err != nil {
		return err
	}
	manifest := namingSecrets("many", 1, 5000)
	defer func() {
		err = errors.Join(err, s.Delete(ctx, namingSecrets("many", 0, 1)), s.seen(ctx))
	}()
	if err := create(ctx, r, manifest); err != nil { // apply would copy it into an annotation, which is too small
		return err
	}
	if err := errors.Join(s.changes(ctx, "beside"), told("many", "limits.secrets")(ctx, s)); err != nil {
		return err
	}
	after, err := rig.Resident(r.Pid())
	if err == nil && after > before+40<<20 {
		err = fmt.Errorf("resident memory was %d MB, and is %d", before>>20, after>>20)
	}
	return err
}

// secretLists returns how many lists of Secrets the API server has answered.
func secretLists(ctx context.Context, r *rig.Rig) (count int, err error) {
	text, err := r.Kubectl(ctx, "get", "--raw", "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "apiserver_request_total{") ||
			!strings.Contains(line, `resource="secrets"`) || !strings.Contains(line, `verb="LIST"`) {
			continue
		}
		fields := strings.Fields(line)
		n, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			return 0, err
		}
		count += int(n)
	}
	return count, nil
}

// mistakes returns 135 Ingresses with 20 mistakes each.
func mistakes(*testbed) string {
	var b strings.Builder
	for i := range 135 {
		var paths []string
		for j := range 20 {
			paths = append(paths, path(fmt.Sprintf("/%d", j), fmt.Sprintf("none%d", j)))
		}
		host := fmt.Sprintf("mistake%d.%s", i, evilHost)
		b.WriteString(ingressOf("evil", fmt.Sprintf("mistake%d", i), nil, rule(host, paths...)))
	}
	return b.String()
}

// overheard breaks a guard of victim, and waits for the Event.
func overheard(ctx context.Context, s *testbed, _ *rig.Rig) (err error) {
	manifest := ingressOf("victim", "broken", []string{"auth-secret: nowhere"}, rule("broken.test", path("/", "app")))
	defer func() { err = errors.Join(err, s.Delete(ctx, manifest)) }()
	if err := s.Apply(ctx, manifest); err != nil {
		return err
	}
	return s.eventually(ctx, func() error {
		got, err := s.Told(ctx, "Ingress", "victim", "broken")
		if err == nil && !strings.Contains(got, "auth-secret") {
			err = fmt.Errorf("nobody is told of a broken guard of victim: %q", got)
		}
		return err
	})
}
