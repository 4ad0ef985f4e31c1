package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"sallyport/test/rig"

	"golang.org/x/sys/unix"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// api returns a client of the API that does not wait between requests.
func (a *arena) api() (kubernetes.Interface, error) {
	config := rest.CopyConfig(a.RESTConfig())
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	return kubernetes.NewForConfig(config)
}

// publish makes an Ingress of the contender's class that sends the host NAME.local to a Service.
func (a *arena) publish(ctx context.Context, client kubernetes.Interface, name, service string) error {
	class, kind := a.contender.ingressClass(), networking.PathTypePrefix
	o := &networking.Ingress{ObjectMeta: metav1.ObjectMeta{Name: name}}
	o.Spec.IngressClassName = &class
	path := networking.HTTPIngressPath{Path: "/", PathType: &kind}
	path.Backend.Service = &networking.IngressServiceBackend{
		Name: service, Port: networking.ServiceBackendPort{Name: "web"},
	}
	rule := networking.IngressRule{Host: name + ".local"}
	rule.HTTP = &networking.HTTPIngressRuleValue{Paths: []networking.HTTPIngressPath{path}}
	o.Spec.Rules = []networking.IngressRule{rule}
	_, err := client.NetworkingV1().Ingresses("default").Create(ctx, o, metav1.CreateOptions{})
	return err
}

// podsOf returns the pods of the application, two at least.
func podsOf(ctx context.Context, client kubernetes.Interface) ([]core.Pod, error) {
	pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=app"})
	if err == nil && len(pods.Items) < 2 {
		err = errors.New("the application has less than two pods")
	}
	return pods.Items, err
}

// serviceOf makes a Service without a selector, and an EndpointSlice with these pods. If a contender reads
// Endpoints, it also makes Endpoints.
func (a *arena) serviceOf(ctx context.Context, client kubernetes.Interface, name string, pods []core.Pod) error {
	o := &core.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
	o.Spec.Ports = []core.ServicePort{{Name: "web", Port: 80, TargetPort: intstr.FromInt32(8080)}}
	_, err := client.CoreV1().Services("default").Create(ctx, o, metav1.CreateOptions{})
	_, written := client.DiscoveryV1().EndpointSlices("default").Create(ctx, endpoints(name, pods),
		metav1.CreateOptions{})
	if a.contender.older {
		_, failed := client.CoreV1().Endpoints("default").Create(ctx, olderEndpoints(name, pods), metav1.CreateOptions{})
		written = errors.Join(written, failed)
	}
	return errors.Join(err, written)
}

// lead changes the pods of a Service that serviceOf has made.
func (a *arena) lead(ctx context.Context, client kubernetes.Interface, name string, pods []core.Pod) error {
	_, err := client.DiscoveryV1().EndpointSlices("default").Update(ctx, endpoints(name, pods), metav1.UpdateOptions{})
	if a.contender.older {
		_, failed := client.CoreV1().Endpoints("default").Update(ctx, olderEndpoints(name, pods), metav1.UpdateOptions{})
		err = errors.Join(err, failed)
	}
	return err
}

// crowd adds Ingresses, each with a Service of one pod, from one number to another, and measures the time until the
// last host is served. It writes the EndpointSlices, too: Kubernetes' own controller writes 20 in a second.
func (a *arena) crowd(ctx context.Context, from, to int) (figure, error) {
	f := figure{Contender: a.contender.name, Unit: "ms"}
	f.Event = fmt.Sprintf("%d Ingresses come, until the last is served", to)
	client, err := a.api()
	if err != nil {
		return f, err
	}
	pods, err := podsOf(ctx, client)
	if err != nil {
		return f, err
	}
	if a.contender.places != nil {
		most, err := placesFor(to)
		if err == nil {
			err = a.Apply(ctx, a.contender.places(most))
		}
		if err != nil {
			return f, err
		}
		progress("%s: each Service has %d places for servers at most", f.Contender, most)
	}
	began := time.Now()
	add := func(i int) error {
		at := i % len(pods)
		return errors.Join(a.serviceOf(ctx, client, crowded(i), pods[at:at+1]),
			a.publish(ctx, client, crowded(i), crowded(i)))
	}
	numbers, failed := make(chan int), make(chan error, to)
	var writers sync.WaitGroup
	for range 8 {
		writers.Go(func() {
			for i := range numbers {
				if err := add(i); err != nil {
					failed <- err
				}
			}
		})
	}
	for i := from + 1; i <= to; i++ {
		numbers <- i
	}
	close(numbers)
	writers.Wait()
	select {
	case err := <-failed:
		return f, err
	default:
	}
	progress("%s: %d Ingresses are written after %s", f.Contender, to, time.Since(began).Round(time.Millisecond))
	if err := a.serves(ctx, crowded(to)+".local"); err != nil {
		return f.endless(ctx, err)
	}
	f.Value = float64(time.Since(began)) / 1e6
	progress("%s: %s: %s", f.Contender, f.Event, f)
	return f, rig.Pause(ctx, 10*time.Second) // what was collected for a while counts for no request
}

// placesFor returns how many places for servers each of some Services may have. HAProxy needs an open file for each
// place, and three quarters of those that this machine allows a program have to suffice.
func placesFor(services int) (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	return max(1, int(min(limit.Max, 1<<30))*3/4/services), nil //nolint:gosec // it is bounded
}

// crowded returns the name of an Ingress, of its Service, and of its host without .local.
func crowded(i int) string { return fmt.Sprintf("crowd-%d", i) }

// patience is how long new Ingresses are made, and new endpoints. A controller that collects changes for five seconds
// serves four of them.
const patience = 20 * time.Second

// fresh measures the time until a new Ingress is served, beside some number of Ingresses. Its Service was
// there before. The time begins when the API has the Ingress, and ends with the first good answer. A client asks
// each millisecond. It measures 50 Ingresses, or as many as are served within patience.
func (a *arena) fresh(ctx context.Context, n int) (figure, error) {
	f := figure{Contender: a.contender.name, Event: "new Ingress to the first 200, p50 and slowest" + beside(n)}
	client, err := a.api()
	if err != nil {
		return f, err
	}
	var took []time.Duration
	for i, end := 0, time.Now().Add(patience); i < 50 && time.Now().Before(end); i++ {
		name := fmt.Sprintf("fresh-%d-%d", n, i)
		if err := a.publish(ctx, client, name, "app"); err != nil {
			return f, err
		}
		began := time.Now()
		err := rig.Within(ctx, rig.Limit, time.Millisecond, name+" is served", func() error {
			return a.ask(ctx, name+".local")
		})
		if err != nil {
			return f.endless(ctx, err)
		}
		took = append(took, time.Since(began))
		if err := rig.Pause(ctx, 100*time.Millisecond); err != nil {
			return f, err
		}
	}
	slices.Sort(took)
	f.P50, f.P99 = share(took, 50), share(took, 100)
	progress("%s: %s: %s", f.Contender, f.Event, f)
	return f, nil
}

// beside names a number of Ingresses in a figure. One is the rule.
func beside(n int) string {
	if n == 1 {
		return ""
	}
	return fmt.Sprintf(", %d Ingresses", n)
}
