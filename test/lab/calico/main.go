// Command calico is Calico in one program: the parts of calico-node, its CNI
// plugins, kube-controllers and calicoctl, each started by its own name, as the
// program's name or as its first argument.
//
// It is a Go module of its own, so that what Calico needs stays out of the
// product's go.mod.
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/projectcalico/calico/calicoctl/calicoctl/commands"
	"github.com/projectcalico/calico/calicoctl/calicoctl/commands/common"
	"github.com/projectcalico/calico/cni-plugin/pkg/ipamplugin"
	"github.com/projectcalico/calico/cni-plugin/pkg/plugin"
	confdconfig "github.com/projectcalico/calico/confd/pkg/config"
	confd "github.com/projectcalico/calico/confd/pkg/run"
	felix "github.com/projectcalico/calico/felix/daemon"
	"github.com/projectcalico/calico/kube-controllers/pkg/config"
	"github.com/projectcalico/calico/kube-controllers/pkg/controllers/node"
	"github.com/projectcalico/calico/libcalico-go/lib/clientv3"
	"github.com/projectcalico/calico/libcalico-go/lib/logutils"
	"github.com/projectcalico/calico/node/pkg/allocateip"
	"github.com/projectcalico/calico/node/pkg/lifecycle/shutdown"
	"github.com/projectcalico/calico/node/pkg/lifecycle/startup"
	"github.com/sirupsen/logrus"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// version is that of the commit that go.mod requires: its manifests name images of this version.
const version = "v3.28.5"

var parts = map[string]func() error{
	"startup": func() error {
		startup.VERSION = version
		startup.Run()
		return nil
	},
	"shutdown": func() error {
		shutdown.Run()
		return nil
	},
	"allocate-tunnel-addrs": func() error {
		allocateip.Run(make(chan struct{}))
		return nil
	},
	"confd": runConfd,
	"felix": func() error {
		felix.Run("/etc/calico/felix.cfg", version, "", "")
		return nil
	},
	"calico": func() error {
		plugin.Main(version)
		return nil
	},
	"calico-ipam": func() error {
		ipamplugin.Main(version)
		return nil
	},
	"kube-controllers": kubeControllers,
	"calicoctl":        calicoctl,
	"version": func() error {
		_, err := fmt.Println(version)
		return err
	},
}

func main() {
	name := filepath.Base(os.Args[0])
	if parts[name] == nil || name == "calico" && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = ""
		if len(os.Args) > 0 {
			name = os.Args[0]
		}
	}
	run := parts[name]
	if run == nil {
		fmt.Fprintf(os.Stderr, "calico: no part is called %q; there are %s\n", name,
			strings.Join(slices.Sorted(maps.Keys(parts)), ", "))
		os.Exit(2)
	}
	switch name {
	case "calico", "calico-ipam", "calicoctl": // logs go to standard error: the answer is on standard output
	default:
		logrus.SetOutput(os.Stdout)
		logrus.SetFormatter(&logutils.Formatter{Component: name})
	}
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// runConfd runs confd on the folder that its first argument names. If -once follows, confd renders each file once
// and ends.
func runConfd() error {
	if len(os.Args) < 2 {
		return errors.New("usage: calico confd FOLDER [-once]")
	}
	c, err := confdconfig.InitConfig(true)
	if err != nil {
		return err
	}
	c.ConfDir = os.Args[1]
	c.Onetime = len(os.Args) > 2 && os.Args[2] == "-once"
	confd.Run(c)
	return nil
}

// kubeControllers runs the node controller of calico-kube-controllers, which releases the addresses and the
// blocks of pods and nodes that are gone. Like the original it ends when its configuration
// changes.
func kubeControllers() error {
	ctx := context.Background()
	var env config.Config
	if err := env.Parse(); err != nil {
		return err
	}
	client, err := clientv3.NewFromEnv()
	if err != nil {
		return fmt.Errorf("Calico's client: %w", err)
	}
	rest, err := clientcmd.BuildConfigFromFlags("", env.Kubeconfig)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	kube, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return fmt.Errorf("Kubernetes' client: %w", err)
	}
	once, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := client.EnsureInitialized(once, "", "k8s"); err != nil {
		return fmt.Errorf("initialise the datastore: %w", err)
	}
	changes := config.NewRunConfigController(ctx, env, client.KubeControllersConfiguration()).ConfigChan()
	now := <-changes
	if now.Controllers.Node == nil {
		return errors.New("ENABLED_CONTROLLERS: want node")
	}
	stop := make(chan struct{})
	factory := informers.NewSharedInformerFactory(kube, 0)
	pods, nodes := factory.Core().V1().Pods().Informer(), factory.Core().V1().Nodes().Informer()
	controller := node.NewNodeController(ctx, kube, client, *now.Controllers.Node, nodes, pods)
	factory.Start(stop)
	go controller.Run(stop)
	<-changes
	close(stop)
	return errors.New("the configuration changed: start this again")
}

// calicoctl runs one command of calicoctl.
func calicoctl() error {
	commands.VERSION, common.VERSION = version, version
	run := map[string]func([]string) error{
		"create": commands.Create, "replace": commands.Replace, "apply": commands.Apply, "patch": commands.Patch,
		"delete": commands.Delete, "get": commands.Get, "label": commands.Label, "convert": commands.Convert,
		"version": commands.Version, "node": commands.Node, "ipam": commands.IPAM, "datastore": commands.Datastore,
	}
	logrus.SetLevel(logrus.PanicLevel)
	if len(os.Args) < 2 || run[os.Args[1]] == nil {
		return errors.New("want create, replace, apply, patch, delete, get, label, convert, version, node, ipam " +
			"or datastore")
	}
	return run[os.Args[1]](os.Args[1:])
}
