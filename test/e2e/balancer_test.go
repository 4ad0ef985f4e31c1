package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sallyport/appliance/status"
	"sallyport/test/lab/world"
)

const balancer = `
apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  type: LoadBalancer
  loadBalancerClass: sallyport.dev/appliance
  selector: {app: app}
  ports:
  - {name: http, port: 80, targetPort: http}
  - {name: other, port: 8080, targetPort: http}
  - {name: dns, port: 53, protocol: UDP}
`

func TestAGroupServesAService(t *testing.T) {
	beside(t, short)
	a, b := newMembers(t, world.Options{Name: "balancer", Workers: 2, Router: world.RouterBIRD},
		"  pools: [203.0.113.64/28]\n")
	r := a.testbed
	r.permitGroup()
	sample, err := os.ReadFile("../demo/app.yaml")
	r.must(err)
	r.apply(string(sample) + "\n---\n" + balancer)
	a.start()
	b.start()
	a.ready()
	b.ready()
	r.spread(a, b)

	holds := func(m member, address string) bool {
		s, err := m.status()
		r.must(err)
		return slices.ContainsFunc(s.Group.Services, func(one status.ServiceStatus) bool {
			return slices.ContainsFunc(one.Addresses, func(a netip.Addr) bool { return a.String() == address })
		})
	}
	address := r.recordedAt("web", "")
	if pool := netip.MustParsePrefix("203.0.113.64/28"); !pool.Contains(netip.MustParseAddr(address)) {
		t.Fatalf("got %s, want an address of %s", address, pool)
	}
	for _, port := range []string{"80", "8080"} {
		r.eventually("port "+port+" answers behind the router", func() error { return r.asks(address + ":" + port) })
	}
	r.eventually("the router has it from both", func() error {
		out, err := r.Exec(t.Context(), world.Router, "ip", "route", "show", address)
		if err == nil && strings.Count(out, "via") != 2 {
			err = errors.New(out)
		}
		return err
	})
	r.eventually("both members tell of it", func() error { // in the status of the next round
		if !holds(a, address) || !holds(b, address) {
			return errors.New("the members do not have the same address for the Service")
		}
		return nil
	})
	version := r.kubectl("get", "service", "web", "-o", "jsonpath={.metadata.resourceVersion}")

	r.sub("a UDP port gets an Event", func(_ *testing.T, r *testbed) {
		r.eventually("the Event", func() error { return r.event("UnsupportedProtocol", "port 53 is not served") })
	})
	r.sub("a member leaves, and one starts again", func(t *testing.T, r *testbed) {
		b.command(t, "drain", "--wait")
		r.must(r.asks(address + ":80"))
		b.command(t, "undrain")
		a.end(syscall.SIGKILL)
		a.start()
		a.ready()
		r.spread(a, b)
		r.must(r.asks(address + ":80"))
		if got := r.recordOf("default", "web"); got != address {
			t.Errorf("the address is %s, and was %s", got, address)
		}
	})
	r.sub("an address is of one Service", func(t *testing.T, r *testbed) {
		r.apply(strings.Replace(balancer, "name: web\n", "name: thief\n  annotations: {sallyport.dev/address: \""+
			address+"\"}\n", 1))
		r.eventually("the Event", func() error {
			return r.event("AddressInUse", address+" is in use by Service default/web")
		})
		if got := r.recordOf("default", "thief"); got != "" {
			t.Errorf("it has %s", got)
		}
		r.must(r.asks(address + ":80"))
	})
	r.sub("nobody wrote the status again", func(t *testing.T, r *testbed) {
		if got := r.kubectl("get", "service", "web", "-o", "jsonpath={.metadata.resourceVersion}"); got != version {
			t.Errorf("the Service has version %s, and had %s", got, version)
		}
	})
	r.sub("a Service that goes gives its address back", func(_ *testing.T, r *testbed) {
		r.kubectl("delete", "service", "web")
		// The one that asked for it gets it.
		r.eventually("the other Service has it", func() error {
			if got := r.recordOf("default", "thief"); got != address {
				return fmt.Errorf("it has %q", got)
			}
			return r.asks(address + ":80")
		})
		r.kubectl("delete", "service", "thief")
		for _, m := range []member{a, b} {
			r.eventually("the address is off "+m.Machine(), func() error {
				out, err := r.Exec(r.t.Context(), m.Machine(), "ip", "-o", "address", "show", "dev", "lo")
				if err == nil && strings.Contains(out, address) {
					err = errors.New(out)
				}
				return err
			})
		}
	})
}

// recordOf returns the addresses in the status of a Service of type LoadBalancer.
func (r *testbed) recordOf(namespace, name string) string {
	r.t.Helper()
	return r.kubectl("get", "service", "-n", namespace, name, "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}")
}

// recordedAt waits until a Service of the namespace default has an address in its status, and returns it. Without an
// address to wait for, any will do.
func (r *testbed) recordedAt(name, want string) (address string) {
	r.t.Helper()
	r.eventually("Service "+name+" has the address "+want, func() error {
		address = r.recordOf("default", name)
		if address == "" || want != "" && address != want {
			return fmt.Errorf("it has %q", address)
		}
		return nil
	})
	return address
}

// asks sends a request for a host that no Ingress has: over HTTP it gets a 404.
func (r *testbed) asks(at string) error {
	answer, err := r.get("http://nobody.test/", at)
	if err == nil && answer.Code != http.StatusOK {
		err = fmt.Errorf("%s answers %d", at, answer.Code)
	}
	return err
}

// event looks for an Event about a Service.
func (r *testbed) event(reason, message string) error {
	out, err := r.Kubectl(r.t.Context(), "get", "events", "--field-selector",
		"involvedObject.kind=Service,reason="+reason, "-o", "jsonpath={.items[*].message}")
	if err == nil && !strings.Contains(out, message) {
		err = fmt.Errorf("Events of %s: %q", reason, out)
	}
	return err
}
