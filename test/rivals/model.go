package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"sallyport/test/lab/world"

	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// modelArg makes this program the model of an external load balancer that learns routes from Calico's
// records.
const modelArg = "model"

// model returns a model of ours. F5 CIS and Avi's AKO document this for Calico without BGP: a static route
// for each block affinity, and pool members as soon as the API names them. Nothing orders routes and
// members. The proxy is HAProxy, so that only the order differs from ours.
func model(haproxy string) contender {
	serve := func(ctx context.Context, a *arena) (string, error) {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		config := fmt.Sprintf(modelConfig, a.path("model.sock"))
		err = errors.Join(
			os.WriteFile(a.path("model.cfg"), []byte(config), 0o600),
			a.start(ctx, world.Appliance, "haproxy", haproxy, "-W", "-db", "-f", a.path("model.cfg")),
			a.start(ctx, world.Appliance, controller, self, modelArg, "-kubeconfig", a.KubeconfigFile(), "-socket",
				a.path("model.sock")))
		return versions(ctx, err, haproxy, "-v")
	}
	return contender{name: "static-routes", one: true, mute: true, serve: serve}
}

// slots is how many servers the model's backend has room for.
const slots = 64

const modelConfig = `global
  stats socket %s level admin
defaults
  mode http
  timeout connect 5s
  timeout client 50s
  timeout server 50s
  timeout http-keep-alive 1m
  option redispatch
  retries 3
frontend http
  bind :80
  default_backend app
backend app
  balance roundrobin
  server-template s 64 0.0.0.0:8080 check inter 5s disabled
`

// follow runs the model. Four times a second it reads the API and sets the difference. Those
// controllers work in rounds, too.
func follow(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet(modelArg, flag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", "", "`file` to reach the API with")
	socket := flags.String("socket", "", "HAProxy's `socket`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	m := follower{socket: *socket, servers: make([]string, slots)}
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := m.round(ctx, client, objects); err != nil {
			log.Print(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// A follower is the model's memory of what it has set.
type follower struct {
	socket  string
	servers []string // the address in each slot; empty means none
	routes  []string // as the arguments of ip route replace
}

// round reads the API, and sets what differs.
func (m *follower) round(ctx context.Context, client kubernetes.Interface, objects dynamic.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	routes, err := wantedRoutes(ctx, client, objects)
	if err != nil {
		return err
	}
	found, err := client.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{
		LabelSelector: discovery.LabelServiceName + "=app",
	})
	if err != nil {
		return err
	}
	var ready []string
	for _, s := range found.Items {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				ready = append(ready, e.Addresses...)
			}
		}
	}
	return errors.Join(m.setRoutes(ctx, routes), m.setServers(ready))
}

// wantedRoutes returns a route for each confirmed block affinity, by the address of its node.
func wantedRoutes(ctx context.Context, client kubernetes.Interface, objects dynamic.Interface) ([]string, error) {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	hops := map[string]string{}
	for _, n := range nodes.Items {
		for _, a := range n.Status.Addresses {
			if hops[n.Name] == "" && a.Type == "InternalIP" {
				hops[n.Name] = a.Address
			}
		}
	}
	kind := schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1", Resource: "blockaffinities"}
	list, err := objects.Resource(kind).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var routes []string
	for _, o := range list.Items {
		node, _, _ := unstructured.NestedString(o.Object, "spec", "node")
		cidr, _, _ := unstructured.NestedString(o.Object, "spec", "cidr")
		state, _, _ := unstructured.NestedString(o.Object, "spec", "state")
		if state == "confirmed" && hops[node] != "" {
			routes = append(routes, cidr+" via "+hops[node])
		}
	}
	return routes, nil
}

func (m *follower) setRoutes(ctx context.Context, want []string) error {
	var errs []error
	run := func(verb, route string) {
		words := append([]string{"route", verb}, strings.Fields(route)...)
		out, err := exec.CommandContext(ctx, "ip", words...).CombinedOutput()
		if err != nil {
			errs = append(errs, fmt.Errorf("ip route %s %s: %w: %s", verb, route, err, bytes.TrimSpace(out)))
		}
	}
	for _, r := range m.routes {
		if !slices.Contains(want, r) {
			run("del", r)
		}
	}
	for _, r := range want {
		if !slices.Contains(m.routes, r) {
			run("replace", r)
		}
	}
	m.routes = want
	return errors.Join(errs...)
}

// setServers puts each address into a slot, and frees the slots of those that are gone.
func (m *follower) setServers(want []string) error {
	for i, a := range m.servers {
		if a != "" && !slices.Contains(want, a) {
			if err := m.command("set server app/s%d state maint", i+1); err != nil {
				return err
			}
			m.servers[i] = ""
		}
	}
	for _, a := range want {
		if slices.Contains(m.servers, a) {
			continue
		}
		i := slices.Index(m.servers, "")
		if i < 0 {
			return errors.New("no slot is left")
		}
		err := errors.Join(m.command("set server app/s%d addr %s port 8080", i+1, a),
			m.command("set server app/s%d state ready", i+1))
		if err != nil {
			return err
		}
		m.servers[i] = a
	}
	return nil
}

// command sends one command to HAProxy.
func (m *follower) command(format string, args ...any) error {
	conn, err := net.DialTimeout("unix", m.socket, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing is lost with it
	if _, err := fmt.Fprintf(conn, format+"\n", args...); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if text := strings.TrimSpace(string(answer)); err == nil && text != "" && !strings.Contains(text, "changed") {
		err = fmt.Errorf("HAProxy: %s", text)
	}
	return err
}
