package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"sallyport/appliance"
	"sallyport/appliance/config"
	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/input"
	"sallyport/ingress/manifest"
	"sallyport/ingress/survey"
	"sallyport/ingress/watch"
)

// A Question says which Ingresses are asked about.
type Question struct {
	From       string    // a controller: nginx or haproxy
	Classes    []string  // names of its IngressClasses; empty for the usual one
	Files      []string  // files and folders; "-" is Stdin. Empty asks a cluster
	Recursive  bool      // folders within folders are read
	Namespace  string    // of objects of files that name none
	Stdin      io.Reader // for "-"
	ConfigMap  string    // that of ingress-nginx, as NAMESPACE/NAME; empty for UsualConfigMap
	Config     string    // the path of a configuration file; empty for the defaults
	Kubeconfig string    // the path of the kubeconfig of a cluster; empty for the clusters of the configuration file
}

// UsualConfigMap is the ConfigMap in the manifests of ingress-nginx.
const UsualConfigMap = "ingress-nginx/ingress-nginx-controller"

// A ConfigMap is that of ingress-nginx.
type ConfigMap struct {
	Name   string                      `json:"name"`             // NAMESPACE/NAME
	Unread string                      `json:"unread,omitempty"` // why it was not read
	Keys   []survey.SurveyedAnnotation `json:"keys,omitempty"`
}

// lost reports whether a guard of the ConfigMap is not kept.
func (m *ConfigMap) lost() bool {
	return m != nil && slices.ContainsFunc(m.Keys, func(k survey.SurveyedAnnotation) bool { return k.Lost() })
}

// A Report is the answer for one cluster.
type Report struct {
	Cluster string `json:"cluster"`
	survey.Survey

	// Totals of the Survey.
	Totals Totals `json:"totals"`

	// ConfigMap is that of ingress-nginx. It is nil for another controller.
	ConfigMap *ConfigMap `json:"configMap,omitempty"`

	// The fields below are about files.
	Files   int               `json:"files,omitempty"`
	Ignored map[string]int    `json:"ignored,omitempty"` // objects of kinds that are not needed, by kind
	Unread  []manifest.Unread `json:"unread,omitempty"`
	Twice   []string          `json:"twice,omitempty"` // objects in several documents; the last one counts
	Assumed manifest.Assumed  `json:"assumed,omitzero"`
}

// Totals count the Ingresses of a Survey.
type Totals struct {
	Ingresses  int                    `json:"ingresses"`
	Bare       int                    `json:"bare"` // without an annotation of the controller
	Verdicts   map[survey.Verdict]int `json:"verdicts"`
	LostGuards int                    `json:"lostGuards"`
}

// Safe reports whether no guard is lost, each path of each Ingress and each port of a TCP is served, and each
// document was read. ValidationRules may define guards.
func (r *Report) Safe() bool {
	return r.Totals.LostGuards == 0 && len(r.Unread) == 0 && !r.ConfigMap.lost() && !r.LosesObject() &&
		!slices.ContainsFunc(r.Ingresses, func(s survey.Surveyed) bool { return !s.Safe() })
}

// Ask returns a Report for each cluster.
func Ask(ctx context.Context, q Question) ([]Report, error) {
	cfg, err := q.config()
	if err != nil {
		return nil, err
	}
	if len(q.Files) > 0 {
		one, err := q.read(cfg)
		return []Report{one}, err
	}
	var all []Report
	for i := range cfg.Clusters {
		s, err := q.look(ctx, cfg, &cfg.Clusters[i])
		if err != nil {
			return nil, fmt.Errorf("cluster %s: %w", cfg.Clusters[i].Name, err)
		}
		r := report(cfg, s, survey.Foreign(q.From))
		r.ConfigMap = q.settings(func(name string) (map[string]string, error) {
			text, err := cfg.Clusters[i].Kubeconfig.Read()
			if err != nil {
				return nil, err
			}
			return watch.DataOf(ctx, text, name)
		})
		all = append(all, r)
	}
	return all, nil
}

// Together compiles the objects of all clusters, or of files, as the appliance does.
func Together(ctx context.Context, q Question) (ingress.Result, error) {
	cfg, err := q.config()
	if err != nil {
		return ingress.Result{}, err
	}
	var snaps []input.Snapshot
	if len(q.Files) > 0 {
		_, s, _, err := q.files(cfg)
		if err != nil {
			return ingress.Result{}, err
		}
		return compiled(cfg, []input.Snapshot{s}), nil
	}
	for i := range cfg.Clusters {
		s, err := q.look(ctx, cfg, &cfg.Clusters[i])
		if err != nil {
			return ingress.Result{}, fmt.Errorf("cluster %s: %w", cfg.Clusters[i].Name, err)
		}
		snaps = append(snaps, s)
	}
	return compiled(cfg, snaps), nil
}

// ErrConfig is the error of a configuration file.
var ErrConfig = errors.New("the configuration file")

// config returns the configuration: that of the file, or the defaults.
func (q *Question) config() (*config.Config, error) {
	if q.Config == "" {
		kubeconfig := q.Kubeconfig
		if kubeconfig == "" {
			kubeconfig = "/dev/null" // nothing reads it
		}
		return config.Parse("the defaults", fmt.Appendf(nil, "clusters:\n- kubeconfig: %q\n", kubeconfig))
	}
	data, err := os.ReadFile(q.Config)
	if err != nil {
		return nil, errors.Join(ErrConfig, err)
	}
	cfg, err := config.Parse(q.Config, data)
	if err != nil {
		return nil, errors.Join(ErrConfig, err)
	}
	if q.Kubeconfig != "" {
		cfg.Clusters[0].Kubeconfig = config.Kubeconfig{Path: q.Kubeconfig}
		cfg.Clusters = cfg.Clusters[:1]
	}
	return cfg, nil
}

// options returns the Options of a cluster, with the classes of the controller.
func (q *Question) options(cfg *config.Config, c *config.Cluster) (input.Options, manifest.Classes) {
	o := appliance.OptionsOf(c, appliance.PoolsOf(cfg))
	o = o.WithDefaults()
	classes := manifest.Classes{Names: []string{o.Class}, Controller: o.Controller}
	if survey.Foreign(q.From) == survey.FromNginx {
		classes = manifest.Classes{Names: o.Nginx.Classes, Controller: o.Nginx.Controllers[0]}
		if len(classes.Names) == 0 {
			classes.Names = []string{"nginx"}
		}
	}
	if q.Config == "" && survey.Foreign(q.From) == survey.FromHAProxy {
		o.CustomResources = true // the controller reads them, and `sallyport config import` writes the key
	}
	if len(q.Classes) > 0 {
		classes.Names = q.Classes
	}
	if survey.Foreign(q.From) == survey.FromNginx {
		o.Nginx.Classes = classes.Names
	} else {
		o.Class = classes.Names[0]
	}
	return o, classes
}

// files returns the objects of files. They count as those of the first cluster.
func (q *Question) files(cfg *config.Config) (c manifest.Contents, s input.Snapshot, a manifest.Assumed, err error) {
	c = manifest.Contents{Namespace: q.Namespace}
	for _, path := range q.Files {
		if path == "-" {
			c.Read("standard input", q.Stdin)
			continue
		}
		if err := c.ReadPath(path, q.Recursive); err != nil {
			return c, s, a, err
		}
	}
	o, classes := q.options(cfg, &cfg.Clusters[0])
	s, a, err = c.Snapshot(cfg.Clusters[0].Name, time.Now(), o, classes)
	return c, s, a, err
}

// read returns the Report on the objects of files.
func (q *Question) read(cfg *config.Config) (Report, error) {
	c, s, assumed, err := q.files(cfg)
	if err != nil {
		return Report{}, err
	}
	r := report(cfg, s, survey.Foreign(q.From))
	r.Files, r.Ignored, r.Unread, r.Twice, r.Assumed = c.Files, c.Others, c.Unread, c.Twice, assumed
	r.ConfigMap = q.settings(func(name string) (map[string]string, error) { return s.ConfigMap(name).Data, nil })
	return r, nil
}

// settings judges the ConfigMap of ingress-nginx. read returns the data of a ConfigMap, or nil if the cluster
// does not have that ConfigMap. settings returns nil for another controller.
func (q *Question) settings(read func(name string) (map[string]string, error)) *ConfigMap {
	if survey.Foreign(q.From) != survey.FromNginx {
		return nil
	}
	m := &ConfigMap{Name: cmp.Or(q.ConfigMap, UsualConfigMap)}
	data, err := read(m.Name)
	switch {
	case err != nil:
		m.Unread = err.Error()
	case data == nil:
		m.Unread = "there is none of this name, or it is empty"
	default:
		m.Keys = survey.SettingsOf(data)
	}
	return m
}

// patience bounds how long a cluster is read.
const patience = time.Minute

// look returns the objects of a cluster.
func (q *Question) look(ctx context.Context, cfg *config.Config, c *config.Cluster) (s input.Snapshot, err error) {
	text, err := c.Kubeconfig.Read()
	if err != nil {
		return s, err
	}
	of := appliance.WatcherConfig(cfg, c, appliance.PoolsOf(cfg), text, nil, slog.New(slog.DiscardHandler))
	var classes manifest.Classes
	of.Options, classes = q.options(cfg, c)
	of.OnlyLook = true
	w, err := watch.New(of)
	if err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	if s, err = w.Await(ctx); err != nil {
		return s, fmt.Errorf("%w; `kubectl get ingress,ingressclass,service,secret -A -o yaml` prints what "+
			"`sallyport migrate -f -` reads", err)
	}
	s.Classes = classes.Among(s.Classes)
	return s, nil
}

// compiled compiles the objects of clusters, and asks HAProxy where it is installed.
func compiled(cfg *config.Config, snaps []input.Snapshot) ingress.Result {
	c := appliance.CompilerOf(cfg.Ports())
	verdicts := haproxy.Verdicts{}
	questions := c.Compile(snaps).Questions
	for _, q := range questions { // HAProxy is asked where it runs
		verdicts[q.Part()] = haproxy.Good
	}
	if program, err := haproxy.FindProgram(cfg.HAProxy.Binary); err == nil {
		maps.Copy(verdicts, program.Vet(questions))
	}
	c.Judge(verdicts)
	return c.Compile(snaps)
}

// report returns the Report on the objects of a cluster.
func report(cfg *config.Config, s input.Snapshot, from survey.Foreign) Report {
	r := Report{Cluster: s.Cluster, Survey: survey.Of(compiled(cfg, []input.Snapshot{s}), s.Cluster, from)}
	r.Totals = Totals{
		Ingresses: len(r.Ingresses), Verdicts: make(map[survey.Verdict]int), LostGuards: r.LostGuards(),
	}
	for i := range r.Ingresses {
		r.Totals.Verdicts[r.Ingresses[i].Verdict]++
		if len(r.Ingresses[i].Annotations) == 0 {
			r.Totals.Bare++
		}
	}
	return r
}
