package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sallyport/test/load"
	"sallyport/test/rig"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
)

// grown measures the time from the moment when the API has a second endpoint of a Service until the first answer of
// its pod, beside some number of Ingresses. Both endpoints are pods of the application. A client asks each millisecond.
// It measures ten times, or as often as patience allows.
func (a *arena) grown(ctx context.Context, n int) (figure, error) {
	f := figure{Contender: a.contender.name, Event: "new endpoint to its first answer, p50 and slowest" + beside(n)}
	client, err := a.api()
	if err != nil {
		return f, err
	}
	pods, err := podsOf(ctx, client)
	if err != nil {
		return f, err
	}
	name := fmt.Sprintf("grown-%d", n)
	if err := errors.Join(a.serviceOf(ctx, client, name, pods[:1]), a.publish(ctx, client, name, name)); err != nil {
		return f, err
	}
	first, second := pods[0].Name, pods[1].Name
	var took []time.Duration
	for i, end := 0, time.Now().Add(patience); i < 10 && time.Now().Before(end); i++ {
		if err := a.answers(ctx, name+".local", first, 20); err != nil {
			return f.endless(ctx, err)
		}
		if err := a.lead(ctx, client, name, pods[:2]); err != nil {
			return f, err
		}
		began := time.Now()
		if err := a.answers(ctx, name+".local", second, 1); err != nil {
			return f.endless(ctx, err)
		}
		took = append(took, time.Since(began))
		if err := a.lead(ctx, client, name, pods[:1]); err != nil {
			return f, err
		}
	}
	slices.Sort(took)
	f.P50, f.P99 = share(took, 50), share(took, 100)
	progress("%s: %s: %s", f.Contender, f.Event, f)
	return f, nil
}

// endpoints returns an EndpointSlice of a Service with pods.
func endpoints(service string, pods []core.Pod) *discovery.EndpointSlice {
	name, port, yes := "web", int32(8080), true
	o := &discovery.EndpointSlice{AddressType: discovery.AddressTypeIPv4}
	o.Name, o.Labels = service, map[string]string{discovery.LabelServiceName: service}
	o.Ports = []discovery.EndpointPort{{Name: &name, Port: &port}}
	for _, p := range pods {
		o.Endpoints = append(o.Endpoints, discovery.Endpoint{
			Addresses: []string{p.Status.PodIP}, NodeName: &p.Spec.NodeName,
			Conditions: discovery.EndpointConditions{Ready: &yes, Serving: &yes},
			TargetRef:  &core.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		})
	}
	return o
}

// olderEndpoints returns the Endpoints of a Service with pods. Kubernetes makes no EndpointSlice of them.
//
//nolint:staticcheck // Endpoints are deprecated, and one contender reads nothing else
func olderEndpoints(service string, pods []core.Pod) *core.Endpoints {
	o := &core.Endpoints{}
	o.Name, o.Labels = service, map[string]string{discovery.LabelSkipMirror: "true"}
	subset := core.EndpointSubset{Ports: []core.EndpointPort{{Name: "web", Port: 8080}}}
	for _, p := range pods {
		subset.Addresses = append(subset.Addresses, core.EndpointAddress{IP: p.Status.PodIP, NodeName: &p.Spec.NodeName})
	}
	o.Subsets = []core.EndpointSubset{subset}
	return o
}

// answers waits until a pod answers so many requests for a host in a row.
func (a *arena) answers(ctx context.Context, host, pod string, times int) error {
	request := fmt.Appendf(nil, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
	good := 0
	return rig.Within(ctx, rig.Limit, time.Millisecond, pod+" answers for "+host, func() error {
		conn, err := load.Open(ctx, a.dial, a.target, nil, time.Second)
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // nothing is lost with it
		by, err := conn.Field(request, "X-Pod")
		if good++; err != nil || by != pod {
			good = 0
		}
		if good < times {
			err = errors.Join(err, fmt.Errorf("%q answers", by))
		}
		return err
	})
}
