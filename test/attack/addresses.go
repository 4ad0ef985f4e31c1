package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sallyport/test/rig"
)

// addresses returns the attacks on the addresses of Services of type LoadBalancer.
func addresses() []attack {
	return []attack{
		{
			by: "tenant", tries: "waits for the address of a Service until victim replaces it",
			promise: "an address stays with its last namespace for an hour after no Service there has it",
			lab:     asMember(pool, routed(waitsForAddress)),
		},
		{
			by: "tenant", tries: "has 16 Services of type LoadBalancer where a pool has 16 addresses",
			promise: "a namespace has a quarter of the pools at most",
			lab:     asMember(pool, routed(takesPool)),
		},
	}
}

// pool gives the group 16 addresses for Services.
const pool = "  pools: [203.0.113.64/28]\n"

// balancer returns the manifest of a Service of type LoadBalancer, which may ask for an address.
func balancer(namespace, name, address string) string {
	asks := ""
	if address != "" {
		asks = fmt.Sprintf(", annotations: {sallyport.dev/address: %q}", address)
	}
	return fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {namespace: %s, name: %s%s}
spec:
  type: LoadBalancer
  loadBalancerClass: sallyport.dev/appliance
  selector: {app: app}
  ports: [{name: web, port: 80, targetPort: http}]
`, namespace, name, asks)
}

// addressesOf returns the addresses of the Services of a namespace, sorted.
func addressesOf(ctx context.Context, r *rig.Rig, namespace string) ([]string, error) {
	const path = "jsonpath={.items[*].status.loadBalancer.ingress[*].ip}"
	out, err := r.Kubectl(ctx, "get", "services", "-n", namespace, "-o", path)
	all := strings.Fields(out)
	slices.Sort(all)
	return all, err
}

// hasAddress waits until a Service, the only one of type LoadBalancer in its namespace, has an
// address, and returns it.
func (s *testbed) hasAddress(ctx context.Context, r *rig.Rig, namespace, name string) (address string, err error) {
	err = s.eventually(ctx, func() error {
		all, err := addressesOf(ctx, r, namespace)
		if err == nil && len(all) == 1 {
			address = all[0]
			return nil
		}
		told, _ := s.Told(ctx, "Service", namespace, name)
		return errors.Join(err, fmt.Errorf("Service %s/%s has the addresses %q, want one; its Events: %q",
			namespace, name, all, told))
	})
	return address, err
}

// tellsOf waits until an Event on a Service contains a word.
func (s *testbed) tellsOf(ctx context.Context, namespace, name, word string) error {
	return s.eventually(ctx, func() error {
		got, err := s.Told(ctx, "Service", namespace, name)
		if err == nil && !strings.Contains(got, word) {
			err = fmt.Errorf("want %q told of Service %s/%s, got %q", word, namespace, name, got)
		}
		return err
	})
}

// waitsForAddress lets evil ask for the address of victim's Service, and replaces that Service.
func waitsForAddress(ctx context.Context, s *testbed, r *rig.Rig) (err error) {
	shop := balancer("victim", "public", "")
	if err := s.Apply(ctx, shop); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Delete(ctx, shop)) }()
	had, err := s.hasAddress(ctx, r, "victim", "public")
	if err != nil {
		return err
	}
	thief := balancer("evil", "thief", had)
	defer func() { err = errors.Join(err, s.Delete(ctx, thief)) }()
	err = errors.Join(s.Apply(ctx, thief), s.tellsOf(ctx, "evil", "thief", had+" is in use"), s.Delete(ctx, shop))
	if err != nil {
		return err
	}
	// The Event says that evil has been considered since.
	err = s.tellsOf(ctx, "evil", "thief", "is kept for its namespace")
	got, failed := addressesOf(ctx, r, "evil")
	if failed == nil && len(got) > 0 {
		failed = fmt.Errorf("evil has the address %q of victim's Service", got)
	}
	if err := errors.Join(err, failed, s.Apply(ctx, shop)); err != nil {
		return err
	}
	has, err := s.hasAddress(ctx, r, "victim", "public")
	if err == nil && has != had {
		err = fmt.Errorf("victim's Service had the address %s, and has %s", had, has)
	}
	return err
}

// takesPool asks for as many addresses as the pool has, and then for one of victim.
func takesPool(ctx context.Context, s *testbed, r *rig.Rig) (err error) {
	const size = 16
	var b strings.Builder
	for i := range size {
		b.WriteString(balancer("evil", fmt.Sprintf("takes%d", i), ""))
	}
	all, one := b.String(), balancer("victim", "public", "")
	defer func() { err = errors.Join(err, s.Delete(ctx, all+one)) }()
	if err := s.Apply(ctx, all); err != nil {
		return err
	}
	refused := func() error {
		const path = `jsonpath={.items[?(@.reason=="LimitReached")].involvedObject.name}`
		out, err := r.Kubectl(ctx, "get", "events", "-n", "evil", "-o", path)
		if err == nil && !strings.Contains(out, "takes") {
			err = errors.New("no Event says that a limit is reached")
		}
		return err
	}
	if err := errors.Join(s.eventually(ctx, refused), s.Apply(ctx, one)); err != nil {
		return err
	}
	if _, err := s.hasAddress(ctx, r, "victim", "public"); err != nil {
		return err
	}
	got, err := addressesOf(ctx, r, "evil")
	if err == nil && len(got) != size/4 {
		err = fmt.Errorf("evil has %d addresses of %d: %q", len(got), size, got)
	}
	return err
}
