package manifest

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/ingress/input"
)

// told returns what was read, a line each.
func told(c *Contents) string {
	var all []string
	for _, list := range c.objects.All() {
		for _, one := range list {
			all = append(all, strings.TrimPrefix(strings.TrimPrefix(input.KeyOf(object(one)).String(), "/"), "default/"))
		}
	}
	for kind, n := range c.Others {
		all = append(all, strings.Repeat("other "+kind+";", n))
	}
	for _, u := range c.Unread {
		all = append(all, "! "+u.Where+" "+u.Why)
	}
	for _, name := range c.Twice {
		all = append(all, "twice "+name)
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

const small = "apiVersion: v1\nkind: Service\nmetadata: {name: "

func TestAFileIsReadDocumentByDocument(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"nothing":            {"", ""},
		"comments alone":     {"# a\n---\n# b\n---\n", ""},
		"one":                {small + "a}\n", "a"},
		"JSON":               {`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}`, "a"},
		"no end of the line": {small + "a}", "a"},
		"Windows":            {strings.ReplaceAll(small+"a}\n---\n"+small+"b}\n", "\n", "\r\n"), "a\nb"},
		"a byte order mark":  {"\ufeff" + small + "a}\n", "a"},
		"several, with a comment after the separator": {
			"--- # first\n" + small + "a}\n--- \n---\n" + small + "b}\n", "a\nb",
		},
		"another namespace": {small + "a, namespace: b}\n", "b/a"},
		"a List":            {"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: a}}\n- {kind: Pod}\n", "a\nother Pod;"},
		"a List of a kind whose items have no type": {
			"apiVersion: networking.k8s.io/v1\nkind: IngressList\nitems: [{metadata: {name: a}}, {metadata: {name: b}}]\n", "a\nb",
		},
		"Lists without end": {
			strings.Repeat("{kind: List, items: [", 20) + "{}" + strings.Repeat("]}", 20), "other List;",
		},
		"other kinds": {
			"kind: Pod\n---\nkind: Pod\nspec: {{ no YAML }}\n---\nreplicas: 3\n---\n- a\n---\ntext\n", "other ;other ;other ;\nother Pod;other Pod;",
		},
		"Backends of HAProxy's controller": {
			"apiVersion: ingress.v3.haproxy.org/v3\nkind: Backend\nmetadata: {name: a}\nspec: {retries: 2}\n---\n" +
				"apiVersion: ingress.v1.haproxy.org/v1\nkind: BackendList\nitems: [{metadata: {name: b}}]\n---\n" +
				"apiVersion: core.haproxy.org/v1alpha2\nkind: Backend\nmetadata: {name: c}\n",
			"! x:10 a Backend of core.haproxy.org, which HAProxy's controller reads up to version 1.10: write it as one of " +
				"ingress.v3.haproxy.org\na\nb",
		},
		"TCPs of HAProxy's controller": {
			"apiVersion: ingress.v3.haproxy.org/v3\nkind: TCP\nmetadata: {name: a}\nspec: [{name: x}]\n---\n" +
				"apiVersion: ingress.v1.haproxy.org/v1\nkind: TCPList\nitems: [{metadata: {name: b}}]\n---\n" +
				"apiVersion: example.com/v1\nkind: TCP\nmetadata: {name: c}\n", "a\nb\nother TCP;",
		},
		"one name in both groups": {
			"apiVersion: ingress.v3.haproxy.org/v3\nkind: TCP\nmetadata: {name: a}\n---\n" +
				"apiVersion: ingress.v1.haproxy.org/v1\nkind: TCP\nmetadata: {name: a}\n---\n" +
				"apiVersion: ingress.v1.haproxy.org/v1\nkind: TCP\nmetadata: {name: a}\n", "a\na\ntwice TCP default/a",
		},
		"a Global, a Defaults and a Frontend of HAProxy's controller": {
			"apiVersion: ingress.v3.haproxy.org/v3\nkind: Global\nmetadata: {name: a}\n---\n" +
				"apiVersion: ingress.v1.haproxy.org/v1\nkind: Defaults\nmetadata: {name: b}\n---\n" +
				"apiVersion: ingress.v3.haproxy.org/v3\nkind: Frontend\nmetadata: {name: c}\n", "a\nb\nc",
		},
		"ValidationRules of HAProxy's controller": {
			"apiVersion: ingress.v3.haproxy.org/v3\nkind: ValidationRules\nmetadata: {name: a}\n---\n" +
				"apiVersion: example.com/v1\nkind: ValidationRules\n", "a\nother ValidationRules;",
		},
		"an Ingress of another group": {"apiVersion: config.openshift.io/v1\nkind: Ingress\n", "other Ingress;"},
		"an Ingress of an old version": {
			small + "a}\n---\napiVersion: extensions/v1beta1\nkind: Ingress\nmetadata: {name: old}\n",
			"! x:5 an Ingress of extensions/v1beta1, which no version of Kubernetes from 1.22 on serves: " +
				"`kubectl convert` makes networking.k8s.io/v1 of it\na",
		},
		"no YAML":    {small + "a\n---\n" + small + "b}\n", "! x:1 it is no YAML: line 3: did not find expected ',' or '}'\nb"},
		"a template": {"kind: Service\nmetadata: {name: {{ .Values.name }}\n", "! x:1 it is a template that was not rendered, as `helm template` does"},
		"a wrong type": {
			"apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: a, annotations: {b: 5}}\n",
			"! x:1 an Ingress: cannot unmarshal number into Go struct field ObjectMeta.metadata.annotations of type string",
		},
		"no name": {"apiVersion: v1\nkind: Secret\nmetadata: {generateName: a-}\n", "! x:1 a Secret without a name"},
		"twice":   {small + "a}\n---\n" + small + "a}\nspec: {ports: [{port: 80}]}\n", "a\ntwice Service default/a"},
		"a bomb": {
			"kind: Service\na: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n" +
				"d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n" +
				"g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n",
			"! x:1 it is no YAML: document contains excessive aliasing",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := Contents{Namespace: "default"}
			c.Read("x", strings.NewReader(tt.text))
			if diff := cmp.Diff(tt.want, told(&c)); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
		})
	}
}

// TestALargeDocumentIsLeftOutAlone reads 100 MB. One document is too large, and the objects before and
// after it are read.
func TestALargeDocumentIsLeftOutAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("it reads 100 MB")
	}
	line := "a: " + strings.Repeat("x", 1021) + "\n"
	c := Contents{Namespace: "default"}
	c.Read("x", lines(small+"a}\n---\n", line, 100<<10, "---\n"+small+"b}\n"))
	want := "! x:5 the document has more than 32 MiB: write its objects to several documents\na\nb"
	if got := told(&c); got != want {
		t.Errorf("got %s", got)
	}
}

func TestFoldersAreReadToTheDepthThatIsAskedFor(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.yaml", "b.txt", "in/c.yml", "in/.git/d.yaml", "in/e.json"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		text := small + strings.TrimSuffix(filepath.Base(name), filepath.Ext(name)) + "}\n"
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "bad.yaml"), bytes.Repeat([]byte{0xff, 0}, 100), 0o644); err != nil {
		t.Fatal(err)
	}
	for recursive, want := range map[bool]string{false: "a", true: "a\nc\ne"} {
		c := Contents{Namespace: "default"}
		if err := c.ReadPath(dir, recursive); err != nil {
			t.Fatal(err)
		}
		got := told(&Contents{objects: c.objects})
		if got != want || len(c.Unread) != 1 {
			t.Errorf("recursive is %t: got %q and %v", recursive, got, c.Unread)
		}
	}
	if err := new(Contents).ReadPath(filepath.Join(dir, "none"), false); err == nil {
		t.Error("a path that does not exist is no error")
	}
}

// TestWhatFilesDoNotHaveIsAssumed reads an Ingress without its Secrets, Service and class.
func TestWhatFilesDoNotHaveIsAssumed(t *testing.T) {
	c := Contents{Namespace: "shop"}
	c.Read("x", strings.NewReader(`apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: web
  annotations:
    nginx.ingress.kubernetes.io/auth-type: basic
    nginx.ingress.kubernetes.io/auth-secret: users
    nginx.ingress.kubernetes.io/auth-url: http://door.ops.svc/check
    nginx.ingress.kubernetes.io/custom-headers: shop/headers
    sallyport.dev/jwt-public-keys: keys
spec:
  tls: [{secretName: web-tls}]
  rules:
  - host: a.test
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}]}
  - host: b.test
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 8080}}}}]}
`))
	o := input.Options{Nginx: input.NginxOptions{Classes: []string{"nginx"}, Controllers: []string{"k8s.io/ingress-nginx"}}}
	of := Classes{Names: []string{"nginx", "inner"}, Controller: "k8s.io/ingress-nginx"}
	s, assumed, err := c.Snapshot("c", time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), o, of)
	if err != nil {
		t.Fatal(err)
	}
	want := Assumed{
		Secrets: []string{"shop/users", "shop/web-tls"}, ConfigMaps: []string{"shop/headers", "shop/keys"},
		Services: []string{"ops/door", "shop/web"}, Classless: 1,
	}
	if diff := cmp.Diff(want, assumed); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if len(s.Classes) != 2 || s.Classes[1].Name != "nginx" || !isDefault(s.Classes[1]) || isDefault(s.Classes[0]) {
		t.Errorf("classes are %v", s.Classes)
	}
	for _, certificate := range s.Certificates() {
		if !slices.Equal(certificate.Names, []string{"a.test", "b.test"}) {
			t.Errorf("the certificate is for %q", certificate.Names)
		}
	}
	if len(c.objects.Secrets)+len(c.objects.Services)+len(c.objects.Classes) > 0 {
		t.Error("what is assumed is among what was read")
	}
}

// TestTheNewerGroupOfCustomResourcesCounts reads resources of one name in both groups, in each order.
func TestTheNewerGroupOfCustomResourcesCounts(t *testing.T) {
	newer, older := "", ""
	for _, kind := range []string{"Backend", "TCP", "Global", "Defaults"} {
		newer += "apiVersion: " + input.CustomV3 + "\nkind: " + kind + "\nmetadata: {name: a}\n---\n"
		older += "apiVersion: " + input.CustomV1 + "\nkind: " + kind + "List\nitems: [{metadata: {name: a}}]\n---\n"
	}
	for _, text := range []string{newer + older, older + newer} {
		c := Contents{Namespace: "default"}
		c.Read("x", strings.NewReader(text))
		s, _, err := c.Snapshot("c", time.Unix(0, 0), input.Options{CustomResources: true}, Classes{Names: []string{"haproxy"}})
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Backends) != 1 || s.Backends[0].Older() || len(s.TCPs) != 1 || s.TCPs[0].Older() ||
			len(s.Globals) != 1 || s.Globals[0].Older() || len(s.Defaults) != 1 || s.Defaults[0].Older() {
			t.Errorf("got %v, %v, %v and %v", s.Backends, s.TCPs, s.Globals, s.Defaults)
		}
		var told []string
		for _, p := range s.Beyond {
			told = append(told, p.Kind+" "+p.Name+" "+p.Reason)
		}
		want := []string{
			"Backend a UnusedResource", "TCP a UnusedResource", "Global a UnusedResource", "Defaults a UnusedResource",
		}
		if diff := cmp.Diff(want, told); diff != "" || len(c.Twice) > 0 {
			t.Errorf("twice %q; want (-), got (+):\n%s", c.Twice, diff)
		}
	}
}

func TestTheServicesOfTCPsAreAssumed(t *testing.T) {
	c := Contents{Namespace: "shop"}
	c.Read("x", strings.NewReader("apiVersion: "+input.CustomV3+`
kind: TCP
metadata: {name: db}
spec:
- {name: a, frontend: {binds: {v4: {port: 5432}}}, service: {name: db, port: 5432}}
- {name: b, frontend: {binds: {v4: {port: 5433}}, acl_list: [{acl_name: a}]}, service: {name: closed, port: 5432}}
`))
	for _, row := range []struct {
		on   bool
		want []string
	}{{true, []string{"shop/db"}}, {false, nil}} {
		s, assumed, err := c.Snapshot("c", time.Unix(0, 0), input.Options{CustomResources: row.on},
			Classes{Names: []string{"haproxy"}})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(row.want, assumed.Services); diff != "" || row.on && s.Services[0].Spec.Ports[0].Port != 5432 {
			t.Errorf("custom resources are read: %t; want (-), got (+):\n%s", row.on, diff)
		}
	}
}

// FuzzRead checks that no text ends the reading of the next file, and that what is told has one line.
func FuzzRead(f *testing.F) {
	f.Add([]byte(small + "a}\n---\nkind: List\nitems: [{kind: Ingress}]\n"))
	f.Add([]byte("apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: a}\nspec: {rules: [{http: {paths: [{}]}}]}\n"))
	f.Add([]byte("---\n--- \n{{ a }}\n---x\n&a [*a]\n"))
	f.Add([]byte("apiVersion: " + input.CustomV1 + "\nkind: TCP\nmetadata: {name: a}\nspec: [{service: {name: a, port: 1}}]"))
	f.Add([]byte("kind: \"Secret\"\napiVersion: v1\nmetadata: {name: a}\nstringData: {a: b}\ndata: {c: '!'}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c := Contents{Namespace: "default"}
		c.Read("x", bytes.NewReader(text))
		c.Read("y", strings.NewReader(small+"after}\n"))
		if !slices.ContainsFunc(c.objects.Services, func(s *service) bool { return s.Name == "after" }) {
			t.Errorf("the file after it was not read: %v", c.Unread)
		}
		for _, u := range c.Unread {
			if strings.ContainsAny(u.Why, "\n\r") {
				t.Errorf("several lines: %q", u.Why)
			}
		}
		o := input.Options{CustomResources: true, Nginx: input.NginxOptions{Classes: []string{"nginx"}, Controllers: []string{"k"}}}
		if _, _, err := c.Snapshot("c", time.Unix(0, 0), o, Classes{Names: []string{"nginx"}, Controller: "k"}); err != nil {
			t.Error(err)
		}
	})
}

type service = corev1.Service

func object(one any) metav1.Object { return one.(metav1.Object) }

// lines returns a reader of a text, of a line so many times, and of another text.
func lines(before, line string, times int, after string) io.Reader {
	all := []io.Reader{strings.NewReader(before)}
	for range times {
		all = append(all, strings.NewReader(line))
	}
	return io.MultiReader(append(all, strings.NewReader(after))...)
}
