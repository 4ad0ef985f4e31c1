package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sallyport/test/rig"

	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// fresh measures the time from the moment when the API has a new Ingress for a Service that was there
// before, until the first good answer for its host. A client asks each millisecond.
func (a *arena) fresh(ctx context.Context) (figure, error) {
	f := figure{Contender: a.contender.name, Event: "new Ingress to the first 200, p50 and slowest of 50"}
	client, err := kubernetes.NewForConfig(a.RESTConfig())
	if err != nil {
		return f, err
	}
	class, kind := a.contender.ingressClass(), networking.PathTypePrefix
	ingresses := client.NetworkingV1().Ingresses("default")
	var took []time.Duration
	for i := range 50 {
		name := fmt.Sprintf("fresh-%d", i)
		o := &networking.Ingress{ObjectMeta: metav1.ObjectMeta{Name: name}}
		o.Spec.IngressClassName = &class
		path := networking.HTTPIngressPath{Path: "/", PathType: &kind}
		path.Backend.Service = &networking.IngressServiceBackend{
			Name: "app", Port: networking.ServiceBackendPort{Name: "web"},
		}
		rule := networking.IngressRule{Host: name + ".local"}
		rule.HTTP = &networking.HTTPIngressRuleValue{Paths: []networking.HTTPIngressPath{path}}
		o.Spec.Rules = []networking.IngressRule{rule}
		if _, err := ingresses.Create(ctx, o, metav1.CreateOptions{}); err != nil {
			return f, err
		}
		began := time.Now()
		err := rig.Within(ctx, rig.Limit, time.Millisecond, name+" is served", func() error {
			return a.ask(ctx, rule.Host)
		})
		if err != nil {
			return f, err
		}
		took = append(took, time.Since(began))
		if err := rig.Pause(ctx, 100*time.Millisecond); err != nil {
			return f, err
		}
	}
	slices.Sort(took)
	f.P50, f.P99 = float64(took[len(took)/2])/1e6, float64(took[len(took)-1])/1e6
	progress("%s: %s: %s", f.Contender, f.Event, f)
	return f, nil
}
