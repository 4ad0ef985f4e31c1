package watch

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"sallyport/ingress/apiserver"
	"sallyport/ingress/calico"
)

// A Sight tells which of the objects that an appliance needs a cluster can have, and
// which it has.
type Sight struct {
	Server   string // host of the API server
	APIGroup string // of Calico's objects
	ASN      uint32 // of the nodes without an AS of their own
	Filters  bool   // a BGPFilter can reject what a peer announces
	ByOrigin bool   // a BGPFilter can also reject the routes that a node has learned
	Class    string // settings of the IngressClass beside its controller; "" if there are none
	Gateways bool   // it has the CRDs of Gateway API
}

// LookAt reads a Sight from a cluster, and changes nothing there. It needs no more rights
// than [Rules]. The API group of Calico's objects is group, or if that is empty, the one
// that the cluster uses. Sight.Class is that of the IngressClass with the name class.
func LookAt(ctx context.Context, name string, kubeconfig []byte, group, class string) (Sight, error) {
	ctx, cancel := context.WithTimeout(ctx, apiserver.Patience)
	defer cancel()
	w, err := New(Config{Name: name, Kubeconfig: kubeconfig, APIGroup: group, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return Sight{}, err
	}
	s := Sight{Server: w.server.Host}
	if s.APIGroup, _, err = w.chosen(ctx); err != nil {
		return s, err
	}
	version, err := schema.ParseGroupVersion(s.APIGroup)
	if err != nil {
		return s, err
	}
	configs, err := w.dynamic.Resource(version.WithResource("bgpconfigurations")).List(ctx, metav1.ListOptions{})
	if err != nil {
		return s, fmt.Errorf("the AS number of the cluster cannot be read: %w", apiserver.Root(err))
	}
	list := make([]*unstructured.Unstructured, len(configs.Items))
	for i := range configs.Items {
		list[i] = &configs.Items[i]
	}
	s.ASN, _ = calico.ASN(list)
	document, err := w.kube.Document(ctx, "/openapi/v3/apis/"+s.APIGroup)
	if err != nil {
		return s, fmt.Errorf("the definition of BGPFilter in %s cannot be read: %w", s.APIGroup, apiserver.Root(err))
	}
	form, err := calico.FilterFormOf(s.APIGroup, document)
	if err != nil {
		return s, err
	}
	s.Filters, s.ByOrigin = form != calico.NoFilter, form == calico.ByOrigin
	kinds, err := w.servedGateways(ctx)
	if err != nil {
		return s, err
	}
	s.Gateways = !kinds[classes].Empty()
	named, err := w.kube.IngressClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return s, fmt.Errorf("the IngressClasses cannot be read: %w", apiserver.Root(err))
	}
	for _, c := range named.Items {
		if c.Name == class {
			s.Class = more(c)
		}
	}
	return s, nil
}

// DataOf returns the data of the ConfigMap NAMESPACE/NAME of a cluster. It returns nil if the cluster has no such
// ConfigMap.
func DataOf(ctx context.Context, kubeconfig []byte, full string) (map[string]string, error) {
	config, err := apiserver.Config(kubeconfig)
	if err != nil {
		return nil, err
	}
	kube, err := newClients(config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, apiserver.Patience)
	defer cancel()
	namespace, name, _ := strings.Cut(full, "/")
	list, err := kube.ConfigMaps(namespace).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return nil, apiserver.Root(err)
	}
	for _, m := range list.Items {
		return m.Data, nil
	}
	return nil, nil
}

// A Greeting has the facts that the first answer of an API server shows.
type Greeting struct {
	Time    time.Time // of the server's clock, to the second
	Expires time.Time // when the first of its certificates expires; zero if it has none
}

// Greet asks an API server for its version, which needs no rights.
func Greet(ctx context.Context, kubeconfig []byte) (g Greeting, err error) {
	config, err := apiserver.Config(kubeconfig)
	if err != nil {
		return g, err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return g, err
	}
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return g, err
	}
	ctx, cancel := context.WithTimeout(ctx, apiserver.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.JoinPath("version").String(), nil)
	if err != nil {
		return g, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return g, apiserver.Root(err)
	}
	_ = answer.Body.Close()
	if answer.TLS != nil {
		for _, c := range answer.TLS.PeerCertificates {
			if g.Expires.IsZero() || c.NotAfter.Before(g.Expires) {
				g.Expires = c.NotAfter
			}
		}
	}
	g.Time, err = http.ParseTime(answer.Header.Get("Date"))
	return g, err
}

// more names the settings of an IngressClass beside its controller.
func more(c networkingv1.IngressClass) string {
	var all []string
	for _, key := range sortedKeys(c.Annotations) {
		if key != corev1.LastAppliedConfigAnnotation {
			all = append(all, "annotation "+key)
		}
	}
	for _, key := range sortedKeys(c.Labels) {
		all = append(all, "label "+key)
	}
	if c.Spec.Parameters != nil {
		all = append(all, "parameters")
	}
	return strings.Join(all, ", ")
}
