// Command controlplane is the lab's real Kubernetes control plane in one
// binary: etcd, kube-apiserver, kube-controller-manager, kube-scheduler and
// kubectl, each started by its own name as the first argument.
//
// It is a Go module of its own, so that what Kubernetes needs stays out of the
// product's go.mod.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: controlplane "+
			"etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubectl ARGS...")
		os.Exit(2)
	}
	name := os.Args[1]
	os.Args = os.Args[1:]
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		run(apiserver.NewAPIServerCommand())
	case "kube-controller-manager":
		run(controllermanager.NewControllerManagerCommand())
	case "kube-scheduler":
		run(scheduler.NewSchedulerCommand())
	case "kubectl":
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			kubectlutil.CheckErr(err)
		}
	default:
		fmt.Fprintf(os.Stderr, "controlplane: no part is called %q\n", name)
		os.Exit(2)
	}
}

func run(cmd *cobra.Command) { os.Exit(cli.Run(cmd)) }
