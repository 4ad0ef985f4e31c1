// Package kubelet is the lab's stand-in for a node's agent: the one part of a
// lab cluster that is not the real program.
//
// It owns the pods that the real scheduler binds to its node. A pod is a
// network namespace. A veth pair joins it to the node's namespace, with the
// addresses and routes that Calico would use, or those of a CNI plugin. A
// container is a program of this machine that runs in the pod's namespace. The
// package alone knows which program stands for which image, and which processes
// and namespaces it has made. It notes them in its directory: the next run, or
// Clean, removes those that a crash left behind.
//
// It promises that an address belongs to one pod at a time, unless a plugin
// allocates it. IPAMBlock objects are the only truth, and each change is an update
// of the version that was read; or the node has ranges of its own, which no other
// node uses. It also promises to report and end pods as Kubernetes does: readiness
// by probes, preStop hook, SIGTERM, grace period, SIGKILL, and only then the object
// is deleted.
//
// A container's program finds the files of Secrets and ConfigMaps that are volumes: paths below
// a mountPath become the real paths, in words of the arguments and in values of the environment
// that begin with it. The API server reads logs from the node's port 10250.
//
// Its limit: no other volumes, no cgroups, no users, no images; a program sees the
// files of the machine. Init containers run one after another, and sidecars
// among them are not supported. The package must run in the machine's own mount
// namespace, where everyone can see /run/netns.
package kubelet

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Config describes one node's agent.
type Config struct {
	Node        string               // name of the Node object
	Netns       string               // the node's network namespace, under /run/netns
	NetnsPrefix string               // pods' namespaces are called PREFIX-HASH; unique to the lab
	Client      kubernetes.Interface // without a rate limit of its own, else many pods start slowly
	Dynamic     dynamic.Interface    // for Calico's objects in crd.projectcalico.org/v1
	Images      map[string]string    // image reference to program; must not change while Run runs
	// optional: JSON object of the same kind, read at each start of a container; overrides Images
	ImagesFile  string
	Dir         string         // this node's own: logs, and the notes for the next run
	NodeAddr    netip.Addr     // address of the node and of its hostNetwork pods
	IPv6        bool           // pods get an address of each family
	PodCIDRs    []netip.Prefix // pods get addresses of these, or of Calico's blocks if there are no PodCIDRs
	FirstBlocks []netip.Prefix // the node claims the blocks that begin here before others
	CNI         *CNI           // gives pods their network; if it is nil, the kubelet itself does
	TLS         *tls.Config    // of the node's port 10250, where the API server reads logs; nil: it is closed
	Log         *slog.Logger
}

// Run runs the agent until ctx ends. It first removes everything that an earlier
// run with the same Dir left behind. At the end it kills its processes and
// removes the networks of the pods. The API's objects and the addresses stay as
// they are, as when a node loses power. Run returns an error only if it could not
// begin.
func Run(ctx context.Context, cfg Config) error {
	notes := ledger(filepath.Join(cfg.Dir, "leftovers"))
	for _, dir := range []string{string(notes), filepath.Join(cfg.Dir, logsDir)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make kubelet's directory: %w", err)
		}
	}
	if err := notes.sweep(cfg.Netns); err != nil {
		return fmt.Errorf("clean up after the last run: %w", err)
	}
	if err := os.RemoveAll(filepath.Join(cfg.Dir, volumesDir)); err != nil {
		return fmt.Errorf("clean up after the last run: %w", err)
	}
	a := &agent{
		Config: cfg,
		notes:  notes,
		laying: make(chan struct{}, 4),
		pods:   map[types.UID]*pod{},
	}
	switch {
	case cfg.CNI != nil:
		a.network = cfg.CNI
	case len(cfg.PodCIDRs) > 0:
		a.network = standIn{newHostLocal(cfg.Node, cfg.PodCIDRs)}
	default:
		a.network = standIn{&ipam{node: cfg.Node, first: cfg.FirstBlocks, dynamic: cfg.Dynamic}}
	}
	if err := a.register(ctx); err != nil {
		return err
	}
	if a.TLS != nil {
		server, err := a.serve(ctx)
		if err != nil {
			return err
		}
		defer server.Close()
	}
	var beating sync.WaitGroup
	beating.Go(func() { a.beat(ctx) })
	defer beating.Wait()

	factory := informers.NewSharedInformerFactoryWithOptions(cfg.Client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", cfg.Node).String()
		}))
	informer := factory.Core().V1().Pods().Informer()
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil
	}
	a.network.reclaim(ctx, a, informer.GetStore().List())
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { a.see(ctx, o, false) },
		UpdateFunc: func(_, o any) { a.see(ctx, o, false) },
		DeleteFunc: func(o any) { a.see(ctx, o, true) },
	})
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	<-ctx.Done()
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.running.Wait()
	return nil
}

// Clean removes everything that a kubelet left behind when it crashed: the
// processes noted in dir, then every namespace called prefix-… with the processes
// inside. No kubelet that uses prefix or dir may be running.
func Clean(prefix, dir string) error {
	errs := []error{ledger(filepath.Join(dir, "leftovers")).sweep("")}
	names, err := os.ReadDir(netnsDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, fmt.Errorf("list network namespaces: %w", err))
	}
	for _, name := range names {
		if strings.HasPrefix(name.Name(), prefix+"-") {
			killInhabitants(name.Name())
			errs = append(errs, deleteNetns(name.Name()))
		}
	}
	return errors.Join(errs...)
}

// An agent is a running kubelet. Each pod has a goroutine of its own.
type agent struct {
	Config
	network network
	notes   ledger
	hostIPs []netip.Addr  // of the node, IPv4 first; set by register
	laying  chan struct{} // bounds how many networks are built at once

	running sync.WaitGroup // the pods' goroutines
	mu      sync.Mutex
	closed  bool
	pods    map[types.UID]*pod
}

// see handles an event of a pod: it passes the object to the pod, and starts a new
// one.
func (a *agent) see(ctx context.Context, o any, gone bool) {
	if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = last.Obj
	}
	object, ok := o.(*corev1.Pod)
	if !ok || object.Spec.NodeName != a.Node {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[object.UID]
	if p != nil {
		p.learn(object, gone)
		return
	}
	if gone || a.closed {
		return
	}
	p = newPod(a, object)
	a.pods[object.UID] = p
	a.running.Go(func() {
		p.run(ctx)
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.pods, object.UID)
	})
}

// program returns the local program that stands for an image. A reference without a
// tag means :latest. An entry without a tag is for every tag.
func (a *agent) program(image string) (string, error) {
	known := []map[string]string{a.Images}
	if a.ImagesFile != "" {
		text, err := os.ReadFile(a.ImagesFile)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("read images: %w", err)
		}
		if err == nil {
			var file map[string]string
			if err := json.Unmarshal(text, &file); err != nil {
				return "", fmt.Errorf("read images from %s: %w", a.ImagesFile, err)
			}
			known = append([]map[string]string{file}, known...)
		}
	}
	for _, images := range known {
		for _, name := range imageNames(image) {
			if path := images[name]; path != "" {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("no program of this machine stands for image %q; name one with --image %s=PATH", image, image)
}

// imageNames returns the names under which an image may be known, the most exact
// name first.
func imageNames(image string) []string {
	bare, _, digest := strings.Cut(image, "@")
	names := []string{image}
	if colon := strings.LastIndexByte(bare, ':'); colon > strings.LastIndexByte(bare, '/') {
		return append(names, bare, bare[:colon])
	}
	if !digest {
		names = append(names, bare+":latest")
	}
	return append(names, bare)
}

// wait returns true after d, and false if ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return ctx.Err() == nil
	}
}

func knock(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
