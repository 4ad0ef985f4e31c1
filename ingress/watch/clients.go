package watch

import (
	"context"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/ingress/input"
)

// An api is the part of an API server that has typed clients. The real one is clients;
// tests have client-go's fake.
type api interface {
	Ingresses(namespace string) ingressClient
	IngressClasses() reader[*networkingv1.IngressClassList]
	Services(namespace string) serviceClient
	EndpointSlices(namespace string) sliceClient
	Nodes() reader[*corev1.NodeList]
	Namespaces() reader[*corev1.NamespaceList]
	ConfigMaps(namespace string) reader[*corev1.ConfigMapList]
	Secrets(namespace string) reader[*corev1.SecretList]
	// Names reads the objects of a core resource in a namespace without anything but their names and
	// versions. In a list, all have the version of the list.
	Names(resource, namespace string) reader[*metav1.PartialObjectMetadataList]

	// API reads and writes a resource of Gateway API, or reads one of the other crdVersions; namespace "" is all. The
	// objects of Gateway API have the types of v1 whatever the version.
	API(of schema.GroupVersionResource, namespace string) apiClient

	// CreateEvent creates an Event in its namespace.
	CreateEvent(context.Context, *corev1.Event) error
	// CreateToken asks for a token of a ServiceAccount.
	CreateToken(
		ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest,
	) (*authenticationv1.TokenRequest, error)
	// Document returns the document of the API server at a path, as JSON.
	Document(ctx context.Context, path string) ([]byte, error)
}

// A reader is a typed client for one resource.
type reader[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// A statusClient also writes the status of objects.
type statusClient[L runtime.Object, T any] interface {
	reader[L]
	Patch(
		ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions,
		subresources ...string,
	) (T, error)
}

// A writer writes objects of one kind.
type writer[T any] interface {
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// A serviceClient reads and writes Services.
type serviceClient interface {
	statusClient[*corev1.ServiceList, *corev1.Service]
	writer[*corev1.Service]
}

// A sliceClient reads and writes EndpointSlices.
type sliceClient interface {
	reader[*discoveryv1.EndpointSliceList]
	writer[*discoveryv1.EndpointSlice]
}

type (
	ingressClient = statusClient[*networkingv1.IngressList, *networkingv1.Ingress]
	apiClient     = statusClient[runtime.Object, runtime.Object]
)

// clients hold a typed client for each kind of objects that the appliance reads or writes. They
// need less memory than client-go's Clientset, which knows the objects of every API group of
// Kubernetes.
type clients struct {
	core, networking, discovery rest.Interface

	crds map[schema.GroupVersion]rest.Interface // of crdVersions
}

// grantsV1Beta1 is the version of ReferenceGrants before v1, with the same fields.
var grantsV1Beta1 = schema.GroupVersion{Group: gatewayv1.GroupName, Version: "v1beta1"}

// crdVersions are the API groups of CRDs with typed objects, with their versions.
var crdVersions = slices.Concat(
	[]schema.GroupVersion{schema.GroupVersion(gatewayv1.GroupVersion), grantsV1Beta1}, exportsVersions, customVersions)

// scheme knows the objects of the API groups of clients. It never changes: the clients
// of all clusters read it at once.
var (
	scheme = func() *runtime.Scheme {
		s := runtime.NewScheme()
		for _, add := range []func(*runtime.Scheme) error{
			metav1.AddMetaToScheme, corev1.AddToScheme, networkingv1.AddToScheme, discoveryv1.AddToScheme,
			authenticationv1.AddToScheme, gatewayv1.Install,
		} {
			utilruntime.Must(add(s))
		}
		s.AddKnownTypes(grantsV1Beta1, &gatewayv1.ReferenceGrant{}, &gatewayv1.ReferenceGrantList{})
		metav1.AddToGroupVersion(s, grantsV1Beta1)
		for _, version := range exportsVersions {
			s.AddKnownTypes(version, &input.ServiceExport{}, &input.ServiceExportList{})
			metav1.AddToGroupVersion(s, version)
		}
		for _, version := range customVersions {
			for kind, types := range map[string][2]runtime.Object{
				backendKind: {&input.Backend{}, &input.BackendList{}}, tcpKind: {&input.TCP{}, &input.TCPList{}},
				globalKind:   {&input.Global{}, &input.GlobalList{}},
				defaultKind:  {&input.Defaults{}, &input.DefaultsList{}},
				frontendKind: {&input.Frontend{}, &input.FrontendList{}},
				rulesKind:    {&input.ValidationRules{}, &input.RulesList{}},
			} {
				s.AddKnownTypeWithName(version.WithKind(kind), types[0])
				s.AddKnownTypeWithName(version.WithKind(kind+"List"), types[1])
			}
			metav1.AddToGroupVersion(s, version)
		}
		return s
	}()
	parameters = runtime.NewParameterCodec(scheme)
)

// newClients returns clients that share connections.
func newClients(config *rest.Config) (*clients, error) {
	shared := rest.CopyConfig(config)
	transport, err := rest.HTTPClientFor(shared)
	if err != nil {
		return nil, err
	}
	shared.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client := func(version schema.GroupVersion, crd bool) (rest.Interface, error) {
		each := rest.CopyConfig(shared)
		if crd { // objects of CRDs have no protobuf
			each.ContentType, each.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
		}
		each.GroupVersion, each.APIPath = &version, "/apis"
		if version.Group == "" {
			each.APIPath = "/api"
		}
		one, err := rest.RESTClientForConfigAndClient(each, transport)
		if err != nil {
			return nil, fmt.Errorf("API group %s: %w", version, err)
		}
		return one, nil
	}
	c := &clients{crds: make(map[schema.GroupVersion]rest.Interface, len(crdVersions))}
	for to, version := range map[*rest.Interface]schema.GroupVersion{
		&c.core: corev1.SchemeGroupVersion, &c.networking: networkingv1.SchemeGroupVersion,
		&c.discovery: discoveryv1.SchemeGroupVersion,
	} {
		if *to, err = client(version, false); err != nil {
			return nil, err
		}
	}
	for _, version := range crdVersions {
		if c.crds[version], err = client(version, true); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// clientOf returns the client of one kind of objects; namespace "" is all.
func clientOf[T, L any, PT interface {
	*T
	runtime.Object
	metav1.Object
}, PL interface {
	*L
	runtime.Object
}](group rest.Interface, resource, namespace string) *gentype.ClientWithList[PT, PL] {
	return gentype.NewClientWithList[PT, PL](resource, group, parameters, namespace,
		func() PT { return new(T) }, func() PL { return new(L) })
}

func (c *clients) Ingresses(namespace string) ingressClient {
	return clientOf[networkingv1.Ingress, networkingv1.IngressList](c.networking, "ingresses", namespace)
}

func (c *clients) IngressClasses() reader[*networkingv1.IngressClassList] {
	return clientOf[networkingv1.IngressClass, networkingv1.IngressClassList](c.networking, "ingressclasses", "")
}

func (c *clients) Services(namespace string) serviceClient {
	return clientOf[corev1.Service, corev1.ServiceList](c.core, "services", namespace)
}

func (c *clients) EndpointSlices(namespace string) sliceClient {
	return clientOf[discoveryv1.EndpointSlice, discoveryv1.EndpointSliceList](c.discovery, "endpointslices", namespace)
}

func (c *clients) Nodes() reader[*corev1.NodeList] {
	return clientOf[corev1.Node, corev1.NodeList](c.core, "nodes", "")
}

func (c *clients) Namespaces() reader[*corev1.NamespaceList] {
	return clientOf[corev1.Namespace, corev1.NamespaceList](c.core, "namespaces", "")
}

func (c *clients) ConfigMaps(namespace string) reader[*corev1.ConfigMapList] {
	return clientOf[corev1.ConfigMap, corev1.ConfigMapList](c.core, "configmaps", namespace)
}

func (c *clients) Secrets(namespace string) reader[*corev1.SecretList] {
	return clientOf[corev1.Secret, corev1.SecretList](c.core, "secrets", namespace)
}

func (c *clients) Names(resource, namespace string) reader[*metav1.PartialObjectMetadataList] {
	return nameTables{c.core, resource, namespace}
}

// nameTables read the Secrets or ConfigMaps of a namespace as tables without objects, as kubectl
// prints them. The API server sends the name, the number of values and the age of each object, and
// the type of a Secret. It sends no value, no label and no annotation.
type nameTables struct {
	core                rest.Interface
	resource, namespace string
}

func (t nameTables) request(o metav1.ListOptions) *rest.Request {
	return t.core.Get().Namespace(t.namespace).Resource(t.resource).VersionedParams(&o, parameters).
		SetHeader("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1").
		Param("includeObject", string(metav1.IncludeNone))
}

// List lists the names.
func (t nameTables) List(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	table := &metav1.Table{}
	if err := t.request(o).Do(ctx).Into(table); err != nil {
		return nil, err
	}
	all := &metav1.PartialObjectMetadataList{ListMeta: table.ListMeta}
	for _, row := range table.Rows {
		one, err := t.object(table, row)
		if err != nil {
			return nil, err
		}
		all.Items = append(all.Items, *one)
	}
	return all, nil
}

// Watch watches the names.
func (t nameTables) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	from, err := t.request(o).Watch(ctx)
	if err != nil {
		return nil, err
	}
	return watch.Filter(from, func(e watch.Event) (watch.Event, bool) {
		table, ok := e.Object.(*metav1.Table)
		if !ok {
			return e, true // an error
		}
		if e.Type == watch.Bookmark {
			e.Object = &metav1.PartialObjectMetadata{
				ObjectMeta: metav1.ObjectMeta{ResourceVersion: table.ResourceVersion},
			}
			return e, true
		}
		if len(table.Rows) == 0 {
			return e, false
		}
		one, err := t.object(table, table.Rows[0])
		if err != nil {
			status := apierrors.NewInternalError(err).Status()
			return watch.Event{Type: watch.Error, Object: &status}, true
		}
		e.Object = one
		return e, true
	}), nil
}

// object returns the object of a row.
func (t nameTables) object(table *metav1.Table, row metav1.TableRow) (*metav1.PartialObjectMetadata, error) {
	if len(row.Cells) > 0 {
		if name, ok := row.Cells[0].(string); ok && name != "" {
			of := metav1.ObjectMeta{Namespace: t.namespace, Name: name, ResourceVersion: table.ResourceVersion}
			return &metav1.PartialObjectMetadata{ObjectMeta: of}, nil
		}
	}
	return nil, fmt.Errorf("the API server returns a table of %s without their names", t.resource)
}

func (c *clients) API(of schema.GroupVersionResource, namespace string) apiClient {
	return apiResource{c.crds[of.GroupVersion()], of.Resource, namespace}
}

// An apiResource reads and writes a resource of CRDs in a namespace.
type apiResource struct {
	from                rest.Interface
	resource, namespace string
}

func (r apiResource) List(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return r.from.Get().NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.resource).
		VersionedParams(&o, parameters).Do(ctx).Get()
}

func (r apiResource) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return r.from.Get().NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.resource).
		VersionedParams(&o, parameters).Watch(ctx)
}

func (r apiResource) Patch(
	ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, subresources ...string,
) (runtime.Object, error) {
	return r.from.Patch(pt).NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.resource).Name(name).
		SubResource(subresources...).VersionedParams(&o, parameters).Body(data).Do(ctx).Get()
}

func (c *clients) CreateEvent(ctx context.Context, e *corev1.Event) error {
	events := clientOf[corev1.Event, corev1.EventList](c.core, "events", e.Namespace)
	_, err := events.Create(ctx, e, metav1.CreateOptions{})
	return err
}

func (c *clients) CreateToken(
	ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest,
) (*authenticationv1.TokenRequest, error) {
	answer := &authenticationv1.TokenRequest{}
	err := c.core.Post().Namespace(namespace).Resource("serviceaccounts").Name(account).SubResource("token").
		Body(request).Do(ctx).Into(answer)
	return answer, err
}

func (c *clients) Document(ctx context.Context, path string) ([]byte, error) {
	return c.core.Get().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx).Raw()
}
