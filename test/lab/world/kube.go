package world

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

//go:embed calico.yaml
var definitions embed.FS

// clients connect to the API server from one host of the lab, and lose their connections when that
// host loses its cable.
type clients struct {
	kube    kubernetes.Interface
	dynamic dynamic.Interface
}

// RESTConfig returns an administrator's client configuration for a program outside the lab's
// network. It opens its connections on the master.
func (l *Lab) RESTConfig() *rest.Config { return l.restConfigFrom(netnsName(l.opts.Name, Master)) }

func (l *Lab) restConfigFrom(ns string) *rest.Config {
	return &rest.Config{
		Host: l.apiServer(),
		TLSClientConfig: rest.TLSClientConfig{
			CAData: l.ca.pem, CertData: l.admin.cert, KeyData: l.admin.key,
		},
		Dial:          dialer(ns),
		WrapTransport: l.epoch.watcher,
		QPS:           -1, // no limit
	}
}

func (l *Lab) apiServer() string {
	master, _ := l.Host(Master)
	return "https://" + net.JoinHostPort(master.Addr.Addr().String(), strconv.Itoa(apiPort))
}

func (l *Lab) clientsFrom(ns string) (clients, error) {
	config := l.restConfigFrom(ns)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return clients{}, err
	}
	dyn, err := dynamic.NewForConfig(config)
	return clients{kube, dyn}, err
}

// connect creates the lab's own clients and the administrator's kubeconfig.
func (l *Lab) connect() (err error) {
	if l.admin, err = l.ca.client("kubernetes-admin", "system:masters"); err != nil {
		return err
	}
	if err := l.writeConfig(l.KubeconfigFile(), func(u *clientcmdapi.AuthInfo) {
		u.ClientCertificateData, u.ClientKeyData = l.admin.cert, l.admin.key
	}); err != nil {
		return err
	}
	l.clients, err = l.clientsFrom(netnsName(l.opts.Name, Master))
	return err
}

// KubeconfigFile returns the path of the administrator's kubeconfig. Its server is the master's
// address, so it is for programs on hosts of the lab.
func (l *Lab) KubeconfigFile() string { return l.path("kubeconfig") }

// Kubeconfig returns the administrator's kubeconfig.
func (l *Lab) Kubeconfig() ([]byte, error) { return os.ReadFile(l.KubeconfigFile()) }

// ServiceAccountKubeconfig returns a kubeconfig with a token of the ServiceAccount that is valid
// for the given time. It has the rights that RBAC gives that account.
func (l *Lab) ServiceAccountKubeconfig(ctx context.Context, namespace, name string,
	life time.Duration,
) ([]byte, error) {
	seconds := int64(life / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	answer, err := l.kube.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	return l.kubeconfig(func(u *clientcmdapi.AuthInfo) { u.Token = answer.Status.Token })
}

// writeKubeconfig writes the kubeconfig of a user with a client certificate.
func (l *Lab) writeKubeconfig(name, user string) (string, error) {
	p, err := l.ca.client(user)
	if err != nil {
		return "", err
	}
	file := l.path("pki", name+".kubeconfig")
	return file, l.writeConfig(file, func(u *clientcmdapi.AuthInfo) {
		u.ClientCertificateData, u.ClientKeyData = p.cert, p.key
	})
}

func (l *Lab) writeConfig(file string, identify func(*clientcmdapi.AuthInfo)) error {
	text, err := l.kubeconfig(identify)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

func (l *Lab) kubeconfig(identify func(*clientcmdapi.AuthInfo)) ([]byte, error) {
	user := clientcmdapi.NewAuthInfo()
	identify(user)
	config := clientcmdapi.NewConfig()
	config.Clusters["lab"] = &clientcmdapi.Cluster{Server: l.apiServer(), CertificateAuthorityData: l.ca.pem}
	config.AuthInfos["lab"] = user
	config.Contexts["lab"] = &clientcmdapi.Context{Cluster: "lab", AuthInfo: "lab"}
	config.CurrentContext = "lab"
	return clientcmd.Write(*config)
}

// Kubectl returns a kubectl command with the administrator's rights.
func (l *Lab) Kubectl(ctx context.Context, args ...string) *exec.Cmd {
	return kubectl(ctx, l.opts.Name, l.program, l.KubeconfigFile(), args)
}

func kubectl(ctx context.Context, lab, program, kubeconfig string, args []string) *exec.Cmd {
	return command(ctx, lab, Master, append([]string{program, "kubectl", "--kubeconfig", kubeconfig}, args...)...)
}

// patience bounds a wait for what comes within seconds on an idle machine: only a hang reaches it.
const patience = 5 * time.Minute

// answering bounds one check of an await. The API server may keep a request for a kind that it has just
// got to know until the client gives up.
const answering = 30 * time.Second

// await repeats a check until it succeeds, the time is over, or it fails with a fatalError. The
// error has the last failure.
func await(ctx context.Context, what string, limit time.Duration, ask func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %s", limit))
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		asked, answered := context.WithTimeout(ctx, answering)
		ok, err := ask(asked)
		answered()
		if fatal := (*fatalError)(nil); errors.As(err, &fatal) {
			return fmt.Errorf("wait for %s: %w", what, fatal.error)
		}
		if ok && err == nil {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, errors.Join(context.Cause(ctx), last))
		case <-tick.C:
		}
	}
}

// fatalError ends an await at once.
type fatalError struct{ error }

// awaitAPIServer waits for what appears last: the default namespace, addresses for Services, for
// which /readyz is ok a moment too early, and the roles of the controllers. kube-controller-manager
// waits ten seconds for these, and then ends.
func (l *Lab) awaitAPIServer(ctx context.Context) error {
	return await(ctx, "the API server", patience, func(ctx context.Context) (bool, error) {
		if err := l.partsAlive(); err != nil {
			return false, &fatalError{err}
		}
		one := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "is-there-room-"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
		}
		_, err := l.kube.CoreV1().Services(metav1.NamespaceDefault).Create(ctx, one,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return false, err
		}
		_, err = l.kube.Discovery().RESTClient().Get().AbsPath("/healthz").DoRaw(ctx)
		return err == nil, err
	})
}

// awaitServiceAccount waits for the default ServiceAccount, without which no pod is admitted.
func (l *Lab) awaitServiceAccount(ctx context.Context) error {
	return await(ctx, "the default ServiceAccount", patience, func(ctx context.Context) (bool, error) {
		if err := l.partsAlive(); err != nil {
			return false, &fatalError{err}
		}
		_, err := l.kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, err
	})
}

// defineCalico creates the CRDs and waits until they are served.
func (l *Lab) defineCalico(ctx context.Context) error {
	objects, err := calicoDefinitions()
	if err != nil {
		return err
	}
	crds := l.dynamic.Resource(schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions",
	})
	for _, o := range objects {
		if _, err := crds.Create(ctx, o, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("define %s: %w", o.GetName(), err)
		}
	}
	for _, o := range objects {
		plural, _, _ := strings.Cut(o.GetName(), ".")
		if err := await(ctx, o.GetName(), patience, func(ctx context.Context) (bool, error) {
			_, err := l.dynamic.Resource(calicoResource(plural)).List(ctx, metav1.ListOptions{Limit: 1})
			return err == nil, err
		}); err != nil {
			return err
		}
	}
	return nil
}

// calicoDefinitions reads the CRDs.
func calicoDefinitions() ([]*unstructured.Unstructured, error) {
	text, err := definitions.ReadFile("calico.yaml")
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &o.Object); err != nil {
			return nil, fmt.Errorf("calico.yaml: %w", err)
		}
		objects = append(objects, o)
	}
	return objects, nil
}

func calicoResource(plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1", Resource: plural}
}
