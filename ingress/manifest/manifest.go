package manifest

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"sallyport/ingress/input"
)

// Contents are the objects that were read.
type Contents struct {
	// Namespace is the namespace of objects that name none.
	Namespace string

	Files  int            // that were read
	Others map[string]int // objects that are not needed, by kind; "" is a document without a kind
	Unread []Unread       // in the order of reading
	Twice  []string       // objects that were read more than once; the last one counts

	objects input.Objects
	seen    map[string]metav1.Object // the last one of each kind, group and name
}

// Unread is something that cannot be read.
type Unread struct {
	Where string `json:"where"` // PATH, or PATH:LINE of the first line of a document
	Why   string `json:"why"`
}

// largest is the number of bytes that a document may have.
const largest = 32 << 20

// deepest bounds Lists within Lists.
const deepest = 3

func (c *Contents) unread(where, format string, args ...any) {
	c.Unread = append(c.Unread, Unread{where, fmt.Sprintf(format, args...)})
}

// Read adds the objects of the documents of a reader. where names it for people.
func (c *Contents) Read(where string, r io.Reader) {
	if c.seen == nil {
		c.seen, c.Others = make(map[string]metav1.Object), make(map[string]int)
	}
	c.Files++
	d := documents{from: bufio.NewReaderSize(r, 64<<10), next: 1}
	for {
		text, line, err := d.read()
		at := fmt.Sprintf("%s:%d", where, line)
		switch {
		case errors.Is(err, io.EOF):
			return
		case errors.Is(err, errTooLarge):
			c.unread(at, "the document has more than %d MiB: write its objects to several documents", largest>>20)
		case err != nil:
			c.unread(where, "%v", err)
			return
		default:
			c.document(at, text)
		}
	}
}

// documents splits a stream of YAML.
type documents struct {
	from *bufio.Reader
	next int // the number of the next line
}

var errTooLarge = errors.New("too large")

// read returns the next document, and the number of its first line. It keeps no more than largest bytes.
func (d *documents) read() (text []byte, line int, err error) {
	line = d.next
	large, begins := false, true
	for {
		part, err := d.from.ReadSlice('\n')
		if begins && separates(part) {
			d.next++
			if large || len(bytes.TrimSpace(text)) > 0 {
				break
			}
			text, line = nil, d.next
			continue
		}
		if large = large || len(text)+len(part) > largest; large {
			text = nil
		} else {
			text = append(text, part...)
		}
		if begins = !errors.Is(err, bufio.ErrBufferFull); begins {
			d.next++
		}
		switch {
		case err == nil, errors.Is(err, bufio.ErrBufferFull):
		case !errors.Is(err, io.EOF):
			return nil, line, err
		case large || len(bytes.TrimSpace(text)) > 0:
			return d.done(text, line, large)
		default:
			return nil, line, io.EOF
		}
	}
	return d.done(text, line, large)
}

func (*documents) done(text []byte, line int, large bool) ([]byte, int, error) {
	if large {
		return nil, line, errTooLarge
	}
	return text, line, nil
}

// separates reports whether a line begins a new document (YAML 1.2.2, 9.1.2).
func separates(line []byte) bool {
	rest, is := bytes.CutPrefix(line, []byte("---"))
	return is && (len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0)
}

// wanted are the kinds that are read.
var wanted = []string{
	"Ingress", "IngressClass", "Service", "Secret", "ConfigMap", "Namespace", "Backend", "TCP", "Global",
	"Defaults", "Frontend", input.RulesKind,
}

// oldest is a group of custom resources of HAProxy's own controller that is not read.
const oldest = "core.haproxy.org"

// kindLine matches the line with the kind of a document in YAML's block style.
var kindLine = regexp.MustCompile(`(?m)^kind:[ \t]*["']?([A-Za-z0-9]+)["']?[ \t]*(?:#.*)?\r?$`)

// document adds the objects of a document.
func (c *Contents) document(where string, text []byte) {
	// Most documents of a repository are of other kinds, and some of these are large. They need not
	// be parsed.
	if m := kindLine.FindSubmatch(text); m != nil {
		if kind := string(m[1]); !slices.Contains(wanted, kind) && !strings.HasSuffix(kind, "List") {
			c.Others[kind]++
			return
		}
	}
	object := bytes.TrimSpace(text)
	if !json.Valid(object) {
		var err error
		if object, err = yaml.YAMLToJSON(text); err != nil {
			why := "it is no YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")
			if bytes.Contains(text, []byte("{{")) {
				why = "it is a template that was not rendered, as `helm template` does"
			}
			c.unread(where, "%s", oneLine(why))
			return
		}
	}
	if bytes.Equal(bytes.TrimSpace(object), []byte("null")) {
		return // comments alone
	}
	c.take(where, object, metav1.TypeMeta{}, 0)
}

// oneLine returns a text without line breaks, and not too long.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	const longest = 300
	if len(s) > longest {
		s = strings.ToValidUTF8(s[:longest], "") + "..."
	}
	return s
}

// take adds an object, or those of a List. An object of a List may leave out its type.
func (c *Contents) take(where string, object []byte, of metav1.TypeMeta, depth int) {
	var head struct {
		metav1.TypeMeta
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(object, &head); err != nil {
		c.Others[""]++ // a list of values, or a text
		return
	}
	kind, version := cmp.Or(head.Kind, of.Kind), cmp.Or(head.APIVersion, of.APIVersion)
	if each, is := strings.CutSuffix(kind, "List"); is && depth < deepest {
		inner := metav1.TypeMeta{Kind: each, APIVersion: version}
		if each == "" {
			inner = metav1.TypeMeta{}
		}
		for _, item := range head.Items {
			c.take(where, item, inner, depth+1)
		}
		return
	}
	switch kind + " " + version {
	case "Ingress networking.k8s.io/v1":
		add(c, where, object, kind, &c.objects.Ingresses, new(networkingv1.Ingress))
	case "IngressClass networking.k8s.io/v1":
		add(c, where, object, kind, &c.objects.Classes, new(networkingv1.IngressClass))
	case "Service v1":
		add(c, where, object, kind, &c.objects.Services, new(corev1.Service))
	case "Secret v1":
		add(c, where, object, kind, &c.objects.Secrets, new(corev1.Secret))
	case "ConfigMap v1":
		add(c, where, object, kind, &c.objects.ConfigMaps, new(corev1.ConfigMap))
	case "Namespace v1":
		add(c, where, object, kind, &c.objects.Namespaces, new(corev1.Namespace))
	case "Backend " + input.CustomV1, "Backend " + input.CustomV3:
		addCustom(c, where, object, kind, version, &c.objects.Backends)
	case "TCP " + input.CustomV1, "TCP " + input.CustomV3:
		addCustom(c, where, object, kind, version, &c.objects.TCPs)
	case "Global " + input.CustomV1, "Global " + input.CustomV3:
		addCustom(c, where, object, kind, version, &c.objects.Globals)
	case "Defaults " + input.CustomV1, "Defaults " + input.CustomV3:
		addCustom(c, where, object, kind, version, &c.objects.Defaults)
	case "Frontend " + input.CustomV3:
		addCustom(c, where, object, kind, version, &c.objects.Frontends)
	case input.RulesKind + " " + input.CustomV3:
		addCustom(c, where, object, kind, version, &c.objects.Rules)
	case "Ingress extensions/v1beta1", "Ingress networking.k8s.io/v1beta1":
		c.unread(where, "an Ingress of %s, which no version of Kubernetes from 1.22 on serves: `kubectl convert` "+
			"makes networking.k8s.io/v1 of it", version)
	default:
		if group, _, _ := strings.Cut(version, "/"); group == oldest && slices.Contains(wanted, kind) {
			c.unread(where, "%s of %s, which HAProxy's controller reads up to version 1.10: write it as one of "+
				"ingress.v3.haproxy.org", aOr(kind), oldest)
			return
		}
		c.Others[oneLine(kind)]++
	}
}

// addCustom adds a custom resource to the list of its kind. An object of a List may leave out its type.
func addCustom[Of any](c *Contents, where string, object []byte, kind, version string, to *[]*input.Custom[Of]) {
	one := new(input.Custom[Of])
	one.APIVersion, one.Kind = version, kind
	add(c, where, object, kind, to, one, version)
}

// add adds an object to the list of its kind. A later object of the same name replaces an earlier object. Groups tell
// apart objects of one kind.
func add[T metav1.Object](
	c *Contents, where string, object []byte, kind string, to *[]T, one T, groups ...string,
) {
	if err := json.Unmarshal(object, one); err != nil {
		c.unread(where, "%s: %s", aOr(kind), oneLine(strings.TrimPrefix(err.Error(), "json: ")))
		return
	}
	cluster := kind == "IngressClass" || kind == "Namespace"
	switch {
	case one.GetName() == "":
		c.unread(where, "%s without a name", aOr(kind))
		return
	case cluster:
		one.SetNamespace("")
	case one.GetNamespace() == "":
		one.SetNamespace(c.Namespace)
	}
	if s, is := any(one).(*corev1.Secret); is {
		for name, value := range s.StringData { // as the API server does
			if s.Data == nil {
				s.Data = make(map[string][]byte)
			}
			s.Data[name] = []byte(value)
		}
		s.StringData = nil
	}
	key := strings.TrimPrefix(one.GetNamespace()+"/"+one.GetName(), "/")
	name := kind + " " + key
	in := strings.Join(append(groups, name), " ")
	if was := c.seen[in]; was != nil {
		c.Twice = append(c.Twice, oneLine(name))
		*to = slices.DeleteFunc(*to, func(o T) bool { return metav1.Object(o) == was })
	}
	c.seen[in] = one
	*to = append(*to, one)
}

// aOr returns a kind with its article.
func aOr(kind string) string {
	if kind == "Ingress" || kind == "IngressClass" {
		return "an " + kind
	}
	return "a " + kind
}
