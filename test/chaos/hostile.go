package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// The blocks of the lab's nodes.
const (
	blockOf1 = "172.16.171.64/26"
	blockOf2 = "172.16.189.64/26"
)

// affinity returns a BlockAffinity of a node and a block.
func affinity(node, block, state string) string {
	name := node + "-" + strings.NewReplacer(".", "-", "/", "-").Replace(block)
	return fmt.Sprintf("\n---\napiVersion: crd.projectcalico.org/v1\nkind: BlockAffinity\nmetadata: {name: %s}\n"+
		"spec: {cidr: %s, node: %s, state: %s, deleted: \"false\"}\n", name, block, node, state)
}

// via returns the next hop of our route for a prefix.
func (s *testbed) via(ctx context.Context, prefix string) (string, error) {
	out, err := s.Exec(ctx, world.Appliance, "ip", "-o", "route", "show", prefix, "proto", strconv.Itoa(protocol))
	f := strings.Fields(out)
	if err != nil || len(f) < 3 {
		return "", errors.Join(err, fmt.Errorf("no route: %q", out))
	}
	return f[2], nil
}

func (s *testbed) awaitVia(ctx context.Context, prefix, want string) error {
	return rig.Eventually(ctx, prefix+" goes by "+want, func() error {
		got, err := s.via(ctx, prefix)
		if err == nil && got != want {
			err = errors.New("it goes by " + got)
		}
		return err
	})
}

// moveBlock moves the second worker's block to the first worker and back, while the pods of other
// blocks are replaced.
func moveBlock(ctx context.Context, s *testbed) error {
	if _, err := s.Kubectl(ctx, "drain", "worker2", "--ignore-daemonsets", "--delete-emptydir-data",
		"--force"); err != nil {
		return err
	}
	if err := errors.Join(s.rollout(ctx), s.settle(ctx)); err != nil {
		return err
	}
	move := func(from, to, hop string) error {
		old := from + "-" + strings.NewReplacer(".", "-", "/", "-").Replace(blockOf2)
		if _, err := s.Kubectl(ctx, "rollout", "restart", "deployment/app"); err != nil {
			return err
		}
		if _, err := s.Kubectl(ctx, "delete", "blockaffinity", old); err != nil {
			return err
		}
		if _, err := s.Kubectl(ctx, "patch", "ipamblock", strings.NewReplacer(".", "-", "/", "-").Replace(blockOf2),
			"--type=merge", "-p", `{"spec":{"affinity":"host:`+to+`"}}`); err != nil {
			return err
		}
		if err := s.Apply(ctx, affinity(to, blockOf2, "confirmed")); err != nil {
			return err
		}
		return errors.Join(s.awaitVia(ctx, blockOf2, hop), s.rollout(ctx))
	}
	err := move("worker2", "worker1", "192.168.50.23")
	// The block may go back only without pods in it.
	err = errors.Join(err, move("worker1", "worker2", "192.168.50.24"))
	_, uncordon := s.Kubectl(ctx, "uncordon", "worker2")
	return errors.Join(err, uncordon)
}

// claimBlock makes the second worker claim the first one's block in every way that Calico's
// records allow. The block's own record still names the owner.
func claimBlock(ctx context.Context, s *testbed) error {
	name := "worker2-172-16-171-64-26"
	mark := s.mark()
	for _, state := range []string{"pending", "confirmed", "pendingDeletion"} {
		if err := errors.Join(s.Apply(ctx, affinity("worker2", blockOf1, state)),
			rig.Pause(ctx, 2*time.Second)); err != nil {
			return err
		}
		if got, err := s.via(ctx, blockOf1); err != nil || got != "192.168.50.23" {
			s.fail("claimed as %s the block goes by %s (%v)", state, got, err)
		}
	}
	if _, err := s.Kubectl(ctx, "patch", "blockaffinity", name, "--type=merge", "-p",
		`{"spec":{"deleted":"true","state":"confirmed"}}`); err != nil {
		return err
	}
	err := rig.Pause(ctx, time.Second)
	_, deleted := s.Kubectl(ctx, "delete", "blockaffinity", name)
	if s.said(mark, "state=closed") || s.said(mark, "route dropped") || s.said(mark, "route added") {
		s.fail("a server was closed or a route changed")
	}
	return errors.Join(err, deleted)
}

// announce makes a node's BIRD announce exactly these prefixes to the appliance.
func (s *testbed) announce(ctx context.Context, node world.Host, asn int, prefixes ...string) error {
	var routes strings.Builder
	for _, p := range prefixes {
		fmt.Fprintf(&routes, "  route %s blackhole;\n", p)
	}
	text := fmt.Sprintf(`router id %[1]s;
protocol device {}
protocol static hostile {
%[2]s}
protocol bgp Global_192_168_50_21 {
  local %[1]s as %[3]d;
  neighbor 192.168.50.21 as %[4]d;
  multihop;
  connect delay time 1; connect retry time 1; error wait time 1,2;
  import none;
  export all;
}
`, node.Addr.Addr(), routes.String(), asn, s.asn)
	conf := filepath.Join(s.Dir, "hostile.conf")
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return err
	}
	if out, err := s.BIRD(ctx, node.Name, 4, "configure", `"`+conf+`"`); err != nil ||
		!strings.Contains(out, "econfigur") {
		return errors.Join(err, fmt.Errorf("birdc configure: %s", out))
	}
	return nil
}

// hostilePeer adds a node that announces others' blocks, our own network, the default route and
// 100,000 prefixes, that has another AS, and whose session flaps. (Package bgp tests malformed
// messages.)
func hostilePeer(ctx context.Context, s *testbed) error {
	evil, err := s.AddNode(ctx, "evil")
	if err != nil {
		return err
	}
	if err := s.ClaimBlocks(ctx, "evil"); err != nil {
		return err
	}
	if err := s.settle(ctx); err != nil {
		return err
	}
	good, err := s.observer.routes()
	if err != nil {
		return err
	}
	began := time.Now()
	cpu, err := rig.CPU(s.Pid())
	if err != nil {
		return err
	}
	check := func(what string) {
		now, err := s.observer.routes()
		for source, prefixes := range now {
			for _, p := range prefixes {
				if err == nil && !slices.Contains(good[source], p) {
					s.fail("%s: %s is in the kernel", what, p)
				}
			}
		}
	}
	lies := []string{
		evil.Blocks[0].String(), "0.0.0.0/0", blockOf1, "172.16.200.64/26", "172.16.171.70/32", "172.16.4.64/27",
		"172.16.0.0/16", "192.168.50.0/24", "192.168.50.22/32", "10.96.0.0/16",
	}
	if err := errors.Join(s.announce(ctx, evil, 65000, lies...), rig.Pause(ctx, 3*time.Second)); err != nil {
		return err
	}
	if err := rig.Eventually(ctx, "the lies are refused", func() error {
		st, err := s.Status(ctx)
		if n := st.Refused.Total; err == nil && n < len(lies)-1 {
			err = fmt.Errorf("%d are", n)
		}
		return err
	}); err != nil {
		return err
	}
	check("lies")
	flood := make([]string, 0, 100_000)
	for i := range 100_000 {
		flood = append(flood, fmt.Sprintf("10.%d.%d.%d/32", 128+i>>16, i>>8&255, i&255))
	}
	if err := errors.Join(s.announce(ctx, evil, 65000, flood...), rig.Pause(ctx, 5*time.Second)); err != nil {
		return err
	}
	if err := rig.Eventually(ctx, "the session ends", func() error {
		st, err := s.Status(ctx)
		for _, p := range st.Peers {
			if err == nil && p.Node == "evil" && p.Addr.Is4() && p.LastLoss.Cause == "" {
				err = errors.New("it is " + p.State)
			}
		}
		return err
	}); err != nil {
		return err
	}
	check("100,000 prefixes")
	if err := errors.Join(s.announce(ctx, evil, 64999, lies...), rig.Pause(ctx, 3*time.Second)); err != nil {
		return err
	}
	check("another AS")
	if err := s.announce(ctx, evil, 65000, evil.Blocks[0].String()); err != nil {
		return err
	}
	for range 20 {
		for _, verb := range []string{"disable", "enable"} {
			if _, err := s.BIRD(ctx, "evil", 4, verb, "all"); err != nil {
				return err
			}
			if err := rig.Pause(ctx, 100*time.Millisecond); err != nil {
				return err
			}
		}
	}
	check("flapping")
	after, err := rig.CPU(s.Pid())
	if err != nil {
		return err
	}
	share := float64(after-cpu) / float64(time.Since(began))
	memory, err := rig.Resident(s.Pid())
	if err != nil {
		return err
	}
	s.note("the appliance took %.0f %% of a processor, and %d MB are resident", 100*share, memory>>20)
	if share > 1 {
		s.fail("the appliance took %.1f processors", share)
	}
	if memory > 300<<20 {
		s.fail("%d MB are resident", memory>>20)
	}
	return s.RemoveNode(ctx, "evil")
}

// badIngresses adds Ingresses that cannot be served, then one that can, and waits until that one
// is served.
func badIngresses(ctx context.Context, s *testbed) error {
	var long strings.Builder
	for i := range 4000 {
		fmt.Fprintf(&long, "\n      - {path: /%s/%d, pathType: Prefix, backend: {service: {name: app, port: "+
			"{name: web}}}}", strings.Repeat("x", 100), i)
	}
	bad := ingressOf("bad-service", "bad1.local", "nobody") +
		strings.Replace(ingressOf("bad-secret", "bad2.local", "app"), "  rules:",
			"  tls: [{hosts: [bad2.local], secretName: garbage}]\n  rules:", 1) +
		"\n---\napiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\nmetadata: {name: garbage}\n" +
		"stringData: {tls.crt: \"no certificate\", tls.key: \"no key\"}\n" +
		ingressOf("bad-twin", "test.local", "app") +
		"\n---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: bad-length}\nspec:\n" +
		"  ingressClassName: haproxy\n  rules:\n  - host: bad3.local\n    http:\n      paths:" + long.String() + "\n"
	// kubectl apply would copy each object into an annotation, whose size is limited.
	create := s.Lab.Kubectl(ctx, "create", "-f", "-")
	create.Stdin = strings.NewReader(bad)
	if out, err := create.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl create: %w\n%s", err, out)
	}
	if err := s.Apply(ctx, rig.Service("default", "good", "app")+ingressOf("good", "good.local", "good")); err != nil {
		return err
	}
	err := rig.Eventually(ctx, "the good one is served", func() error {
		_, err := s.Exec(ctx, world.Client, "curl", "-sf", "--max-time", "2", "-o", "/dev/null", "-H",
			"Host: good.local", "http://192.168.50.21/")
		return err
	})
	for _, name := range []string{"bad-service", "bad-secret", "bad-twin"} {
		err = errors.Join(err, rig.Eventually(ctx, "an Event on "+name, func() error {
			out, err := s.Kubectl(ctx, "get", "events", "--field-selector", "type=Warning,involvedObject.name="+name,
				"-o", "jsonpath={.items[*].message}")
			if err == nil && out == "" {
				err = errors.New("none")
			}
			return err
		}))
	}
	_, deleted := s.Kubectl(ctx, "delete", "ingress/bad-service", "ingress/bad-secret", "ingress/bad-twin",
		"ingress/bad-length", "ingress/good", "service/good", "secret/garbage")
	return errors.Join(err, deleted)
}

// noDisk makes the configuration directory read-only, then full. Pods come and go all the same. A
// change that takes a reload waits, and the status says why.
func noDisk(ctx context.Context, s *testbed) error {
	files := filepath.Join(s.Dir, "haproxy")
	says := func(words string) error {
		return rig.Eventually(ctx, "the status says it", func() error {
			st, err := s.Status(ctx)
			if err == nil && !strings.Contains(strings.Join(st.Warnings, ";"), words) {
				err = fmt.Errorf("it says %q", st.Warnings)
			}
			return err
		})
	}
	change := func(value string) error {
		if err := errors.Join(rollingRestart(ctx, s), s.settle(ctx)); err != nil {
			return err
		}
		_, err := s.Kubectl(ctx, "annotate", "--overwrite", "ingress", "app",
			"haproxy.org/request-set-header=X-Disk "+value)
		return err
	}
	if err := syscall.Mount("tmpfs", files, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, "size=4m"); err != nil {
		return err
	}
	err := errors.Join(change("read-only"), says("read-only"))
	if merr := syscall.Mount("tmpfs", files, "tmpfs", syscall.MS_REMOUNT, "size=4m"); merr != nil {
		return errors.Join(err, merr)
	}
	if err := errors.Join(err, s.settle(ctx)); err != nil {
		return err
	}
	filler := filepath.Join(files, "filler")
	full := os.WriteFile(filler, make([]byte, 8<<20), 0o600)
	if full == nil {
		return errors.New("the configuration directory took 8 MB")
	}
	err = errors.Join(change("full"), says("no space"))
	return errors.Join(err, os.Remove(filler), s.rollout(ctx))
}

// churn changes objects of every kind for a time, and then checks that nothing has grown.
func churn(length time.Duration) func(context.Context, *testbed) error {
	return func(ctx context.Context, s *testbed) error {
		before, err := sizeOf(ctx, s.Rig)
		if err != nil {
			return err
		}
		r := rand.New(rand.NewPCG(20, uint64(length))) //nolint:gosec // chance, not secrecy
		rounds := 0
		for end := time.Now().Add(length); time.Now().Before(end); rounds++ {
			var err error
			switch r.IntN(6) {
			case 0, 1:
				err = s.scaleTo(ctx, 3+r.IntN(10))
			case 2:
				err = rollingRestart(ctx, s)
			case 3:
				pod, perr := s.Kubectl(ctx, "get", "pods", "-o", "jsonpath={.items[0].metadata.name}")
				_, derr := s.Kubectl(ctx, "delete", "pod", pod, "--ignore-not-found")
				err = errors.Join(perr, derr, s.rollout(ctx))
			case 4:
				name := fmt.Sprintf("churn-%d", rounds)
				err = errors.Join(s.Apply(ctx, rig.Service("default", name, "app")+
					ingressOf(name, name+".local", name)), rig.Pause(ctx, 2*time.Second))
				_, derr := s.Kubectl(ctx, "delete", "ingress/"+name, "service/"+name)
				err = errors.Join(err, derr)
			case 5:
				err = s.RestartCalico(ctx, []string{"master", "worker1", "worker2"}[r.IntN(3)], 2*time.Second)
			}
			if err != nil {
				return err
			}
		}
		if err := s.scaleTo(ctx, replicas); err != nil {
			return err
		}
		after, err := sizeOf(ctx, s.Rig)
		if err != nil {
			return err
		}
		s.note("%d changes; before: %v, after: %v", rounds, before, after)
		s.compare("", before, after)
		return nil
	}
}
