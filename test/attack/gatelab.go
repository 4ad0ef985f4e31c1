package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// gatewaysInLab returns the attacks by means of Gateway API for which all of the appliance is needed.
func gatewaysInLab() []attack {
	return []attack{
		{
			by: "tenant", tries: "has listeners on the ports of SSH, BGP and the status page",
			promise: "a port of the machine is no Gateway's, even at an address of its own",
			lab:     listensAtPorts,
		},
		{
			by: "tenant", tries: "asks for the address of victim's Service by a Gateway, and the other way round",
			promise: "an address has one owner, whatever its kind", lab: exchangesAddresses,
		},
		{
			by: "tenant", tries: "asks for the address and the port of the group by a Gateway",
			promise: "Gateways have addresses of the pools, and no port of the machine",
			lab:     asMember(pool, routed(asksGroup)),
		},
		{
			by: "operator", tries: "runs two controllers with one GatewayClass",
			promise: "entries of the other controller stay; conditions of ours come back; victim is served",
			lab:     twoControllers,
		},
		{
			by: "operator", tries: "deletes the CRDs of Gateway API, and brings them back",
			promise: "Ingresses go on under load; Gateways are served again", lab: crdsGo,
		},
	}
}

func listensAtPorts(ctx context.Context, s *testbed, r *rig.Rig) (err error) {
	ssh, err := r.Listen(ctx, world.Appliance, "0.0.0.0:22")
	if err != nil {
		return err
	}
	defer ssh.Close() //nolint:errcheck // nothing is lost with it
	objects := gatewayOf("evil", "home", evilGate, plain, "{name: ssh, port: 22, protocol: TCP}",
		"{name: bgp, port: 179, protocol: TCP}", "{name: status, port: 9090, protocol: HTTP}") +
		routeOf("evil", "home", "home", "gate."+evilHost, toApp)
	defer func() { err = errors.Join(err, s.Delete(ctx, objects)) }()
	if err := s.Apply(ctx, objects); err != nil {
		return err
	}
	return all(reports("Gateway", "evil", "home", "Programmed=True", "http Programmed=True",
		"ssh Accepted=False PortUnavailable", "bgp Accepted=False PortUnavailable", "status Accepted=False PortUnavailable"),
		soon("200 evil", atEvil("/")),
		func(ctx context.Context, _ *testbed) error {
			out, err := r.Exec(ctx, world.Appliance, "ss", "-Htln", "src", evilGate)
			if err == nil && (strings.Count(out, "\n") != 1 || !strings.Contains(out, evilGate+":80 ")) {
				err = fmt.Errorf("want a listener on port 80 alone, got\n%s", out)
			}
			return err
		})(ctx, s)
}

func exchangesAddresses(ctx context.Context, s *testbed, r *rig.Rig) (err error) {
	objects := balancer("victim", "public", serviceAddr) + gatewayOf("evil", "thief", serviceAddr, plain) +
		balancer("evil", "thief", gateAddr)
	defer func() { err = errors.Join(err, s.Delete(ctx, objects)) }()
	if err := s.Apply(ctx, balancer("victim", "public", serviceAddr)); err != nil {
		return err
	}
	if has, err := s.hasAddress(ctx, r, "victim", "public"); err != nil || has != serviceAddr {
		return errors.Join(err, fmt.Errorf("victim's Service has the address %q", has))
	}
	if err := s.Apply(ctx, objects); err != nil {
		return err
	}
	return errors.Join(reports("Gateway", "evil", "thief", "Programmed=False AddressNotUsable")(ctx, s),
		s.tellsOf(ctx, "evil", "thief", gateAddr+" is in use"),
		soon("200 victim", request{at: serviceAddr, host: "any.test"})(ctx, s), s.unharmed(ctx))
}

// asksGroup asks for what the group has. Meanwhile victim has a Gateway with an address of the pool.
func asksGroup(ctx context.Context, s *testbed, _ *rig.Rig) (err error) {
	// Without an address of its own, a Gateway would share those of Ingresses.
	const at = "203.0.113.65"
	objects := gatewayOf("victim", "pooled", at, plain) + routeOf("victim", "pooled", "pooled", "pooled.test", toApp) +
		gatewayOf("evil", "group", "203.0.113.10", plain) +
		gatewayOf("evil", "port", "203.0.113.66", plain, "{name: group, port: 7477, protocol: TCP}")
	defer func() { err = errors.Join(err, s.Delete(ctx, objects)) }()
	if err := s.Apply(ctx, objects); err != nil {
		return err
	}
	err = all(reports("Gateway", "victim", "pooled", "Programmed=True"),
		reports("Gateway", "evil", "group", "Programmed=False AddressNotUsable"),
		reports("Gateway", "evil", "port", "http Programmed=True", "group Accepted=False PortUnavailable"))(ctx, s)
	if err != nil {
		return err
	}
	thief := gatewayOf("evil", "thief", at, plain)
	err = errors.Join(s.Apply(ctx, thief), reports("Gateway", "evil", "thief", "Programmed=False AddressNotUsable")(ctx, s))
	return errors.Join(err, s.Delete(ctx, thief))
}

// twoControllers writes statuses as another controller would that takes our class for its own.
func twoControllers(ctx context.Context, s *testbed, r *rig.Rig) error {
	const at = "2026-01-01T00:00:00Z"
	wrong := func(kind string) string {
		return fmt.Sprintf(`{"type": %q, "status": "False", "reason": "Pending", "message": "by another controller", `+
			`"lastTransitionTime": %q, "observedGeneration": 1}`, kind, at)
	}
	foreign := fmt.Sprintf(`{"parentRef": {"name": "web"}, "controllerName": "example.com/other", "conditions": [%s]}`,
		wrong("Accepted"))
	patch := func(kind, of, operations string) error {
		_, err := r.Kubectl(ctx, "patch", kind, "-n", "victim", of, "--subresource=status", "--type=json", "-p", operations)
		return err
	}
	return s.under(ctx, request{at: gateAddr, host: "gate.test"}, "200 victim", "", func() error {
		err := errors.Join(
			patch("gateway", "web", `[{"op": "replace", "path": "/status/conditions", "value": [`+
				wrong("Accepted")+", "+wrong("Programmed")+`]}]`),
			patch("httproute", "web", `[{"op": "replace", "path": "/status/parents/0/conditions", "value": [`+
				wrong("Accepted")+`]}, {"op": "add", "path": "/status/parents/-", "value": `+foreign+`}]`))
		if err != nil {
			return err
		}
		err = errors.Join(reports("Gateway", "victim", "web", "Accepted=True", "Programmed=True")(ctx, s),
			reports("HTTPRoute", "victim", "web", "Accepted=True", "ResolvedRefs=True")(ctx, s))
		got, failed := r.Kubectl(ctx, "get", "httproute", "-n", "victim", "web", "-o",
			`jsonpath={.status.parents[?(@.controllerName=="example.com/other")].conditions[0].message}`)
		if failed == nil && got != "by another controller" {
			failed = fmt.Errorf("the entry of the other controller is %q", got)
		}
		return errors.Join(err, failed)
	})
}

// crdsGo deletes the CRDs, which deletes all objects of their kinds, and brings all back.
func crdsGo(ctx context.Context, s *testbed, r *rig.Rig) error {
	gate := request{at: gateAddr, host: "gate.test"}
	return s.under(ctx, request{host: "plain.test"}, "200 victim", "", func() error {
		names, err := r.Kubectl(ctx, "get", "crds", "-o", "name")
		if err != nil {
			return err
		}
		args := []string{"delete"}
		for crd := range strings.FieldsSeq(names) {
			if strings.HasSuffix(crd, "."+gatewayv1.GroupName) {
				args = append(args, crd)
			}
		}
		if _, err := r.Kubectl(ctx, args...); err != nil {
			return err
		}
		err = s.eventually(ctx, func() error {
			got, err := s.ask(ctx, gate)
			if err == nil && got.pod == "victim" {
				err = errors.New("victim's Gateway is served, and gone")
			}
			if err != nil && got.pod == "" {
				return nil // nobody listens
			}
			return err
		})
		err = errors.Join(err, s.seen(ctx)) // Ingresses are still read
		return errors.Join(err, r.DefineGatewayAPI(ctx, world.Standard), s.Apply(ctx, s.gates()),
			s.eventually(ctx, func() error { return s.note(ctx) }))
	})
}
