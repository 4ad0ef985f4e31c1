package ingress

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// A cost is what HAProxy spends for a namespace because its objects ask for it.
type cost struct {
	clients  int     // entries of tables
	checks   float64 // in a second
	capture  int     // bytes of each request that are kept
	rows     int     // of maps
	backends int
	servers  int
	guesses  int // wrong passwords that are hashed in a second
	text     int // bytes of long values in haproxy.cfg
}

var (
	tableSize = regexp.MustCompile(`stick-table .* size (\d+) `)
	checkTime = regexp.MustCompile(` inter (\d+)`)
	guesses   = regexp.MustCompile(`mod\((\d+)\).*table_gpc0_rate\(\w+\) ge (\d+)`)
)

func number(t *rapid.T, text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// costOf reads HAProxy's files without the code that wrote them, and counts what a namespace costs.
func costOf(t *rapid.T, w written, namespace string) (c cost) {
	for name, section := range w.sections {
		if !strings.HasPrefix(name, "backend "+namespace+"_") {
			continue
		}
		if size := tableSize.FindStringSubmatch(section); size != nil {
			c.clients += number(t, size[1])
			continue
		}
		c.backends++
		for line := range strings.Lines(section) {
			line = strings.TrimSpace(line)
			if found := guesses.FindStringSubmatch(line); found != nil {
				c.guesses = max(c.guesses, number(t, found[1])*number(t, found[2])/5) // in 5 s
			}
			c.text += strings.Count(line, "#")
			if !strings.HasPrefix(line, "server ") {
				continue
			}
			c.servers++
			if !strings.Contains(line, " check ") {
				continue
			}
			every := 2 * time.Second // HAProxy's default
			if inter := checkTime.FindStringSubmatch(line); inter != nil {
				every = time.Duration(number(t, inter[1])) * time.Millisecond
			}
			c.checks += float64(time.Second) / float64(every)
		}
	}
	for path, text := range w.files {
		if strings.HasPrefix(path, "maps/") {
			c.rows += strings.Count(text, namespace+"_")
		}
	}
	return c
}

// greedy are keys whose values say how much of something HAProxy spends, each with values from the
// least to more than any machine has.
var greedy = map[string][]string{
	"rate-limit-requests": {"1", "1000000"},
	"rate-limit-size":     {"1", "100", "100k", "1m", "1g", "99999999999"},
	"rate-limit-period":   {"1ms", "1s", "1h", "24d", "10000d"},
	"limit-connections":   {"1", "1000000"},
	"check":               {"true", "false"},
	"check-interval":      {"1us", "1ms", "10ms", "500ms", "1h", "0"},
	"request-capture":     {"req.hdr(a)", "req.hdr(a)\nreq.hdr(b)\nreq.hdr(c)", strings.Repeat("req.hdr(a)\n", 16)},
	"request-capture-len": {"1", "128", "4096", "65535", "2000000000"},
	"auth-type":           {"basic-auth"},
	"auth-secret":         {"users"},
	"server-ssl":          {"true", "false"},
	"request-set-header":  {"X-Long " + strings.Repeat("#", 500), "X-Long " + strings.Repeat("#", 2000)},
}

// TestWhateverATenantWritesCostsNoMoreThanItsLimits draws the objects of a namespace, with the values
// that cost the most among them. What HAProxy spends for the namespace stays within its limits.
func TestWhateverATenantWritesCostsNoMoreThanItsLimits(t *testing.T) {
	const clients, checks, capture, hosts, paths, backends, servers, guesses, text = 5000, 20, 1000, 3, 6, 7, 9, 5, 6000
	reached := map[string]bool{}
	property := func(t *rapid.T) {
		s := Snapshot{Cluster: Unnamed, NoClasses: true, At: time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)}
		l := &s.Options.Limits
		l.Clients, l.Checks, l.CaptureBytes, l.Hosts, l.Paths, l.Backends, l.Servers, l.WrongPasswords, l.ConfigBytes =
			clients, checks, capture, hosts, paths, backends, servers, guesses, text
		name, port := "http", int32(8080)
		meta := func(name string) metav1.ObjectMeta {
			return metav1.ObjectMeta{Namespace: "evil", Name: name, UID: "u"}
		}
		s.Secrets = []*corev1.Secret{{
			ObjectMeta: meta("users"),
			Data:       map[string][]byte{"ann": []byte("$5$salt$" + strings.Repeat("a", 43))},
		}}
		for i := range rapid.IntRange(1, 4).Draw(t, "services") {
			service := fmt.Sprint("s", i)
			m := meta(service)
			m.Labels = map[string]string{discoveryv1.LabelServiceName: service}
			one := &discoveryv1.EndpointSlice{
				ObjectMeta: m, AddressType: discoveryv1.AddressTypeIPv4,
				Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
			}
			for e := range rapid.IntRange(0, 6).Draw(t, "endpoints") {
				one.Endpoints = append(one.Endpoints,
					discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.%d.%d", i, e+1)}})
			}
			s.Slices = append(s.Slices, one)
			s.Services = append(s.Services,
				&corev1.Service{
					ObjectMeta: meta(service),
					Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: name, Port: 80}}},
				})
		}
		for i := range rapid.IntRange(1, 5).Draw(t, "Ingresses") {
			ing := &networkingv1.Ingress{ObjectMeta: meta(fmt.Sprint("i", i))}
			ing.Spec.IngressClassName = new(string)
			*ing.Spec.IngressClassName = "haproxy"
			ing.Annotations = map[string]string{}
			for _, key := range sortedKeys(greedy) {
				if rapid.IntRange(0, 2).Draw(t, key) > 0 {
					ing.Annotations["haproxy.org/"+key] = rapid.SampledFrom(greedy[key]).Draw(t, "value")
				}
			}
			kind := networkingv1.PathTypePrefix
			for j := range rapid.IntRange(1, 4).Draw(t, "rules") {
				to := networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
					Name: fmt.Sprint("s", rapid.IntRange(0, 3).Draw(t, "service")),
					Port: networkingv1.ServiceBackendPort{Number: 80},
				}}
				ing.Spec.Rules = append(ing.Spec.Rules, networkingv1.IngressRule{
					Host: fmt.Sprintf("h%d.test", rapid.IntRange(0, 5).Draw(t, "host")),
					IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
						Paths: []networkingv1.HTTPIngressPath{{Path: fmt.Sprint("/", j), PathType: &kind, Backend: to}},
					}},
				})
			}
			s.Ingresses = append(s.Ingresses, ing)
		}
		r := Compile([]Snapshot{s})
		if err := r.Config.Validate(); err != nil {
			t.Fatal(err)
		}
		got := costOf(t, write(&r.Config), "evil")
		for _, length := range r.Config.Captures { // in frontends, which these files do not have
			got.capture += length
		}
		for what, of := range map[string][2]float64{
			"clients that tables count": {float64(got.clients), clients},
			"checks a second":           {got.checks, checks},
			// of 16 slots each has the longest of all Ingresses
			"bytes of a request that are kept":      {float64(got.capture), 3.4 * capture},
			"backends":                              {float64(got.backends), backends},
			"servers":                               {float64(got.servers), servers},
			"wrong passwords that are hashed":       {float64(got.guesses), guesses},
			"bytes of haproxy.cfg":                  {float64(got.text), text},
			"rows of maps, for hosts and for paths": {float64(got.rows), 3 * (hosts + paths)},
		} {
			if of[0] > of[1] {
				t.Fatalf("%s: %v, want at most %v", what, of[0], of[1])
			}
			if of[0] > 0.5*of[1] {
				reached[what] = true
			}
		}
	}
	spent := []string{
		"clients that tables count", "checks a second", "bytes of a request that are kept", "backends",
		"servers", "wrong passwords that are hashed", "bytes of haproxy.cfg",
	}
	for range 50 { // a hundred each, and less with -short
		rapid.Check(t, property)
		if !slices.ContainsFunc(spent, func(what string) bool { return !reached[what] }) {
			break
		}
	}
	for _, what := range spent {
		if !reached[what] {
			t.Errorf("no namespace had half of its limit of %s: the test tries too little", what)
		}
	}
}
