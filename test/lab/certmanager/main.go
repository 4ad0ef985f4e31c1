// Command certmanager is cert-manager as far as ACME needs it, made of cert-manager's own controllers:
//
//	certmanager controller KUBECONFIG ADDRESS   the controller, which asks the DNS server at ADDRESS
//	certmanager --listen-port=PORT ...          acmesolver, which answers a challenge in a pod
//
// The module of cert-manager has no commands: each of them is a module of its own that is not served.
// What they set is set here to the defaults of cert-manager.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cert-manager/cert-manager/pkg/controller"
	_ "github.com/cert-manager/cert-manager/pkg/controller/acmechallenges"
	_ "github.com/cert-manager/cert-manager/pkg/controller/acmeorders"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificate-shim/gateways"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificate-shim/ingresses"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/acme"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/acme"
	"github.com/cert-manager/cert-manager/pkg/issuer/acme/http/solver"
	logs "github.com/cert-manager/cert-manager/pkg/logs"
)

// image is that of the pods that answer challenges.
const image = "cert-manager/acmesolver"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && ctx.Err() == nil {
		log.Fatal("certmanager: ", err)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 3 && args[0] == "controller" {
		return control(ctx, args[1], args[2])
	}
	return solve(ctx, args)
}

// solve answers a challenge until its context ends.
func solve(ctx context.Context, args []string) error {
	s := &solver.HTTP01Solver{}
	flags := flag.NewFlagSet("acmesolver", flag.ContinueOnError)
	flags.IntVar(&s.ListenPort, "listen-port", 8089, "port")
	flags.StringVar(&s.Domain, "domain", "", "host of the challenge")
	flags.StringVar(&s.Token, "token", "", "token of the challenge")
	flags.StringVar(&s.Key, "key", "", "answer to the challenge")
	if err := flags.Parse(args); err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = s.Close() })
	return s.Listen(logs.FromContext(ctx))
}

// control runs the controllers until their context ends.
func control(ctx context.Context, kubeconfig, nameserver string) error {
	o := controller.ContextOptions{Kubeconfig: kubeconfig, KubernetesAPIQPS: 20, KubernetesAPIBurst: 50}
	o.ClusterResourceNamespace = "default"
	o.ACMEOptions = controller.ACMEOptions{
		HTTP01SolverImage:                 image,
		HTTP01SolverResourceRequestCPU:    resource.MustParse("10m"),
		HTTP01SolverResourceRequestMemory: resource.MustParse("64Mi"),
		HTTP01SolverResourceLimitsCPU:     resource.MustParse("100m"),
		HTTP01SolverResourceLimitsMemory:  resource.MustParse("64Mi"),
		ACMEHTTP01SolverRunAsNonRoot:      true,
		HTTP01SolverNameservers:           []string{nameserver},
		DNS01Nameservers:                  []string{nameserver},
		DNS01CheckRetryPeriod:             10 * time.Second,
	}
	o.DefaultIssuerKind, o.DefaultIssuerGroup = "Issuer", "cert-manager.io"
	o.DefaultAutoCertificateAnnotations = []string{"kubernetes.io/tls-acme"}
	o.CopiedAnnotationPrefixes = []string{"*", "-kubectl.kubernetes.io/", "-fluxcd.io/", "-argocd.argoproj.io/"}
	o.CertificateRequestMinimumBackoffDuration = 5 * time.Second // for tests, in place of an hour
	o.CertificateRequestMaximumBackoffDuration = 32 * time.Hour
	o.MaxConcurrentChallenges = 60
	o.EnableGatewayAPI = true
	factory, err := controller.NewContextFactory(ctx, o)
	if err != nil {
		return err
	}
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	all, ctx := errgroup.WithContext(ctx)
	for name, build := range controller.Known() {
		c, err := build(factory)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all.Go(func() error {
			if err := c.Run(5, ctx); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	shared.HTTP01ResourceMetadataInformersFactory.Start(ctx.Done())
	shared.GWShared.Start(ctx.Done())
	return all.Wait()
}
