package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// day returns the events of a production day on a group. Operators and users cause all of them but the
// last.
func day() []scenario {
	pods := bounds{gets: true, posts: true} // lasting connections end with their pods
	return []scenario{
		{39, "rolling restart", pods, rollingRestart},
		{39, "scale to 20 and back", pods, func(ctx context.Context, s *testbed) error {
			return errors.Join(s.scaleTo(ctx, 20), s.scaleTo(ctx, replicas))
		}},
		{39, "a node drained", pods, drain},
		{39, "calico-node restarts", nothing, func(ctx context.Context, s *testbed) error {
			return s.RestartCalico(ctx, "worker1", 5*time.Second)
		}},
		{39, "a certificate renewed", nothing, renew},
		{39, "a setting that takes a reload of HAProxy", nothing, resetHeader},
		{39, "a member drained, and back", nothing, drainMember},
		{39, "the configuration files read again", nothing, reconfigure},
		{39, "every member updated", nothing, updateMembers},
		{39, "a node loses power", bounds{gets: true, slowest: 3 * time.Second}, powerLoss},
	}
}

// night repeats the events of a day, each time in another order, until the time has passed and each event
// was there. It checks the bounds of each event, and then that nothing of a member has grown.
func night(length time.Duration) func(context.Context, *testbed) error {
	return func(ctx context.Context, s *testbed) error {
		if err := s.Apply(ctx, ingressOf("renew", renewed, "app")); err != nil {
			return err
		}
		s.backends = 2
		if err := errors.Join(renew(ctx, s), resetHeader(ctx, s), s.settle(ctx)); err != nil {
			return err
		}
		before, err := s.sizes(ctx)
		if err != nil {
			return err
		}
		r := rand.New(rand.NewPCG(39, uint64(length))) //nolint:gosec // chance, not secrecy
		end, events := time.Now().Add(length), 0
		var all result
		for days := 0; days == 0 || time.Now().Before(end); days++ {
			list := day()
			r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
			for _, one := range list {
				if days > 0 && time.Now().After(end) {
					break
				}
				events++
				if err := s.live(ctx, one, &all); err != nil {
					return fmt.Errorf("event %d, %s: %w", events, one.name, err)
				}
			}
		}
		after, err := s.sizes(ctx)
		if err != nil {
			return err
		}
		s.note("%d events under %d requests: %d GETs and %d POSTs failed, %d took more than 1 s, the slowest GET %.0f ms; "+
			"%d lasting connections ended", events, all.Requests, all.Failed, all.Posts, all.Slow, all.Max, all.Cut)
		for i, m := range s.members() {
			s.note("%s before: %v", m.Machine(), before[i])
			s.note("%s after: %v", m.Machine(), after[i])
			s.compare(m.Machine()+": ", before[i], after[i])
		}
		_, err = s.Kubectl(ctx, "delete", "ingress/renew", "secret/test")
		s.backends = 1
		return err
	}
}

// live runs one event as a scenario within a scenario, and adds its figures to those of all.
func (s *testbed) live(ctx context.Context, event scenario, all *result) error {
	if exposed, first := s.observer.take(); exposed > 0 { // since the event before
		s.fail("before %s: open without a route: %s", event.name, first)
	}
	notes, broken := s.notes, s.broken
	res, err := s.run(ctx, event)
	s.notes, s.broken = notes, broken
	for _, why := range res.Broken {
		s.fail("%s at %s: %s", event.name, time.Now().Format(time.TimeOnly), why)
		for _, line := range res.Report.First {
			progress("  %s", line)
		}
	}
	all.Requests, all.Failed, all.Posts = all.Requests+res.Requests, all.Failed+res.Failed, all.Posts+res.Posts
	all.Slow, all.Cut, all.Max = all.Slow+res.Slow, all.Cut+res.Cut, max(all.Max, res.Max)
	return err
}

// renewed is the host of the certificate that renew replaces.
const renewed = "renew.local"

// renew puts another certificate into a Secret, and waits until every connection gets it.
func renew(ctx context.Context, s *testbed) error {
	secret, err := certificate(renewed)
	if err != nil {
		return err
	}
	_, text, _ := strings.Cut(secret, "tls.crt: ")
	text, _, _ = strings.Cut(text, ",")
	decoded, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return err
	}
	want, _ := pem.Decode(decoded)
	if err := s.Apply(ctx, secret+strings.Replace(ingressOf("renew", renewed, "app"), "spec:\n",
		"spec:\n  tls: [{hosts: ["+renewed+"], secretName: test}]\n", 1)); err != nil {
		return err
	}
	return rig.Eventually(ctx, "every connection gets the new certificate", func() error {
		for range 10 * len(s.members()) {
			for _, at := range rig.ServiceAddresses(s.Options()) {
				if err := s.presents(ctx, at+":443", want.Bytes); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// presents reports an error unless the server at an address has this certificate (DER) for renewed.
func (s *testbed) presents(ctx context.Context, address string, want []byte) error {
	conn, err := s.Dial(ctx, world.Client, address)
	if err != nil {
		return err
	}
	defer conn.Close()                                                                     //nolint:errcheck // only looked at
	client := tls.Client(conn, &tls.Config{ServerName: renewed, InsecureSkipVerify: true}) //nolint:gosec // it signs itself
	if err := client.HandshakeContext(ctx); err != nil {
		return err
	}
	if got := client.ConnectionState().PeerCertificates[0]; !bytes.Equal(got.Raw, want) {
		return fmt.Errorf("%s presents the one of %s", address, got.NotBefore)
	}
	return nil
}

// resetHeader changes a header of a backend, and waits until each member has reloaded HAProxy for it.
func resetHeader(ctx context.Context, s *testbed) error {
	return s.reloaded(ctx, func() error {
		_, err := s.Kubectl(ctx, "annotate", "--overwrite", "ingress", "renew",
			fmt.Sprintf("haproxy.org/request-set-header=X-At %d", time.Now().UnixNano()))
		return err
	}, s.members()...)
}

// reloaded waits until each of these members has reloaded HAProxy since do began.
func (s *testbed) reloaded(ctx context.Context, do func() error, members ...*rig.Rig) error {
	before := make([]int, len(members))
	for i, m := range members {
		var err error
		if before[i], err = reloadsOf(ctx, m); err != nil {
			return err
		}
	}
	err := do()
	for i, m := range members {
		err = errors.Join(err, rig.Eventually(ctx, m.Machine()+" has reloaded HAProxy", func() error {
			now, err := reloadsOf(ctx, m)
			if err == nil && now <= before[i] {
				err = fmt.Errorf("%d reloads", now)
			}
			return err
		}))
	}
	return err
}

// reconfigure changes how many connections HAProxy accepts in the file of each member, which then reads it
// again.
func reconfigure(ctx context.Context, s *testbed) error {
	for _, m := range s.members() {
		file := m.Dir + "/sallyport.yaml"
		text, err := os.ReadFile(file) //nolint:gosec // of the lab
		if err != nil {
			return err
		}
		const more = "maxConnections: 2000, "
		next := strings.Replace(string(text), "haproxy: {", "haproxy: {"+more, 1)
		if strings.Contains(string(text), more) {
			next = strings.Replace(string(text), more, "", 1)
		}
		err = s.reloaded(ctx, func() error {
			return errors.Join(os.WriteFile(file, []byte(next), 0o600), syscall.Kill(m.Pid(), syscall.SIGHUP))
		}, m)
		if err != nil {
			return err
		}
	}
	return nil
}

// A size holds the amounts that could grow in a member while it runs.
type size struct {
	MB, HAProxyMB     int // resident
	Files, Goroutines int
	Rules, Routes     int // of nftables, lines; of the kernel
}

// sizes returns the size of each member, once its old workers have ended.
func (s *testbed) sizes(ctx context.Context) (all []size, err error) {
	for _, m := range s.members() {
		one, err := sizeOf(ctx, m)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Machine(), err)
		}
		all = append(all, one)
	}
	return all, nil
}

func sizeOf(ctx context.Context, m *rig.Rig) (out size, err error) {
	worker := 0
	err = rig.Eventually(ctx, "old workers have ended", func() error {
		st, err := m.Status(ctx)
		if err == nil && st.HAProxy.OldWorkers > 0 {
			err = fmt.Errorf("%d have not", st.HAProxy.OldWorkers)
		}
		worker = st.HAProxy.Worker
		return err
	})
	if err != nil {
		return out, err
	}
	own, err1 := rig.Resident(m.Pid())
	haproxy, err2 := rig.Resident(worker)
	files, err3 := os.ReadDir(fmt.Sprintf("/proc/%d/fd", m.Pid()))
	metrics, err4 := m.Exec(ctx, m.Machine(), "curl", "-sf", "http://127.0.0.1:9090/metrics")
	rules, err5 := m.Exec(ctx, m.Machine(), "nft", "list", "ruleset")
	routes, err6 := m.Exec(ctx, m.Machine(), "sh", "-c", "ip -o route show table all; ip -6 -o route show table all")
	out = size{
		MB: own >> 20, HAProxyMB: haproxy >> 20, Files: len(files),
		Rules: strings.Count(rules, "\n"), Routes: strings.Count(routes, "\n"),
	}
	for line := range strings.Lines(metrics) {
		if value, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			out.Goroutines, _ = strconv.Atoi(strings.TrimSpace(value))
		}
	}
	return out, errors.Join(err1, err2, err3, err4, err5, err6)
}

func (z size) String() string {
	return fmt.Sprintf("%d MB resident, HAProxy %d MB, %d open files, %d goroutines, %d lines of nftables, %d routes",
		z.MB, z.HAProxyMB, z.Files, z.Goroutines, z.Rules, z.Routes)
}

// compare fails the scenario for what has grown more than its bound allows.
func (s *testbed) compare(of string, before, after size) {
	for _, one := range []struct {
		what                string
		before, after, more int
	}{
		{"MB resident", before.MB, after.MB, 20 + before.MB/4},
		{"HAProxy's MB resident", before.HAProxyMB, after.HAProxyMB, 20 + before.HAProxyMB/4},
		{"open files", before.Files, after.Files, 10},
		{"goroutines", before.Goroutines, after.Goroutines, 20},
		{"lines of nftables", before.Rules, after.Rules, 0},
		{"routes", before.Routes, after.Routes, 0},
	} {
		if one.after > one.before+one.more {
			s.fail("%s%s grew from %d to %d", of, one.what, one.before, one.after)
		}
	}
}
