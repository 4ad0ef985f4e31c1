// Command lab runs labs: whole clusters with Calico's BGP on this machine, of
// real parts in network namespaces. See README.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"sallyport/test/lab/world"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:           "lab",
		Short:         "A Kubernetes cluster with Calico's BGP on this machine, of real parts",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
	}
	cmd.PersistentFlags().StringVar(&name, "name", "demo", "name of the lab; labs of several names run side by side")
	cmd.AddCommand(
		setupCommand(), upCommand(&name), downCommand(&name), statusCommand(&name),
		kubeconfigCommand(&name), nodeCommand(&name), partitionCommand(&name), healCommand(&name),
		installCalicoCommand(&name), etcdCommand(&name), agentCommand(),
	)
	for _, c := range []*cobra.Command{
		execCommand(&name), kubectlCommand(&name), birdcCommand(&name),
		calicoctlCommand(&name),
	} {
		c.Flags().SetInterspersed(false) // what follows the first argument is not for us
		cmd.AddCommand(c)
	}
	return cmd
}

func setupCommand() *cobra.Command {
	var tests bool
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Install the Debian packages that are missing, compile the control plane",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := world.Setup(cmd.Context(), tests, cmd.OutOrStdout()); err != nil {
				return err
			}
			if _, err := world.ControlPlane(cmd.Context(), cmd.OutOrStdout()); err != nil || !tests {
				return err
			}
			_, err := world.RealCalico(cmd.Context(), cmd.OutOrStdout())
			return err
		},
	}
	cmd.Flags().BoolVar(&tests, "tests", false,
		"also fetch what only tests need: BIRD 2, HAProxy of other Debian suites, Calico")
	return cmd
}

func upCommand(name *string) *cobra.Command {
	var opts world.Options
	var images []string
	var router string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring a lab up; if it is up already, leave it so",
		Example: `  lab up --image jmalloc/echo-server=/tmp/echo
  lab up --name wide --workers 5 --ipv6`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.Name = *name
			opts.Images = map[string]string{}
			switch router {
			case "":
				if opts.Appliances > 1 {
					opts.Router = world.RouterBIRD
				}
			case "none":
			case string(world.RouterBIRD), string(world.RouterPlain):
				opts.Router = world.RouterKind(router)
			default:
				return fmt.Errorf("--router %q: want %s, %s or none", router, world.RouterBIRD, world.RouterPlain)
			}
			for _, i := range images {
				ref, program, ok := strings.Cut(i, "=")
				if !ok || ref == "" || program == "" {
					return fmt.Errorf("--image %q: want REF=PATH", i)
				}
				path, err := exec.LookPath(program)
				if err != nil {
					return fmt.Errorf("--image %s: %w", ref, err)
				}
				if opts.Images[ref], err = absolute(path); err != nil {
					return err
				}
			}
			return up(cmd.Context(), opts, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&images, "image", nil,
		"image reference and the program that stands for it, REF=PATH; may be repeated")
	flags.IntVar(&opts.Workers, "workers", 2, "number of workers")
	flags.IntVar(&opts.Appliances, "appliances", 1, "number of hosts for appliances, 1 to 8: appliance, appliance2...")
	flags.StringVar(&router, "router", "",
		"router between the client and the appliances: bird, with BGP, BFD and ECMP (default if there are several "+
			"appliances); plain, which finds a service address by ARP; or none")
	flags.BoolVar(&opts.IPv6, "ipv6", false, "both families")
	flags.BoolVar(&opts.IPv6Only, "ipv6-only", false, "with --calico real: pods, Services and BGP have IPv6 alone")
	flags.IntVar(&opts.Site, "site", 0,
		"0 to 9: the lan is 192.168.(50+SITE).0/24 and pods are in 172.(16+SITE).0.0/16; labs that share an "+
			"appliance need a site each")
	flags.BoolVar(&opts.SamePods, "same-pods", false, "pods are in 172.16.0.0/16 at any site")
	flags.BoolVar(&opts.HostAccess, "host-access", false,
		"put this machine on the lan as 192.168.50.1, if it has no other use for the range")
	flags.BoolVar(&opts.Mesh, "mesh", false, "let the nodes peer with each other")
	flags.Uint32Var(&opts.AS, "as", world.DefaultAS, "AS number of the cluster")
	flags.BoolVar(&opts.NoCalico, "no-calico", false, "no Calico, until lab install-calico: pods wait for it")
	flags.BoolVar(&opts.HostLocal, "host-local", false,
		"host-local IPAM: pods get addresses of their node's podCIDR, and Calico has no blocks")
	flags.StringVar((*string)(&opts.Calico), "calico", string(world.StandIn),
		"stand-in, which is quick, or real: Calico itself, which is compiled once (6 minutes)")
	flags.IntVar(&opts.Bird, "bird", 1, "series of BIRD on the nodes: 1 or 2")
	flags.BoolVar(&opts.Bare, "bare", false,
		"no control plane: nodes that announce their blocks to the appliance, nothing more")
	flags.Uint32Var(&opts.PeerAS, "peer-as", 0, "with --bare: AS number of the appliance (default: the cluster's)")
	return cmd
}

func downCommand(name *string) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Remove a lab with all that runs in it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			names := []string{*name}
			if all {
				var err error
				if names, err = world.Names(); err != nil {
					return err
				}
			}
			var failed []error
			for _, n := range names {
				failed = append(failed, down(cmd.Context(), n, cmd.OutOrStdout()))
			}
			return errors.Join(failed...)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "every lab on this machine")
	return cmd
}

func statusCommand(name *string) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the hosts of a lab and the BGP sessions of its nodes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var s world.Status
			if err := ask(cmd.Context(), *name, "GET", "/status", nil, &s); err != nil {
				return err
			}
			switch format {
			case "json":
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(s)
			case "":
				return show(cmd.OutOrStdout(), s)
			default:
				return fmt.Errorf("--output %q: want json", format)
			}
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "", "json, or a table when not given")
	return cmd
}

func show(out io.Writer, s world.Status) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "HOST\tADDRESS\tBLOCK\tREADY\tNETNS\tBGP")
	for _, h := range s.Hosts {
		var blocks, sessions []string
		for _, b := range h.Blocks {
			blocks = append(blocks, b.String())
		}
		for _, p := range h.Sessions {
			sessions = append(sessions, p.Name+" "+p.State)
		}
		ready := ""
		if h.Node && !s.Bare {
			ready = map[bool]string{true: "yes", false: "no"}[h.Ready]
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", h.Name, h.Addr.Addr(), strings.Join(blocks, " "), ready, h.Netns,
			strings.Join(sessions, ", "))
	}
	return w.Flush()
}

func execCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:     "exec HOST -- COMMAND",
		Short:   "Run a command on a host of a lab: appliance, client, master, worker1...",
		Example: `  lab exec client -- curl -H 'Host: test.local' http://192.168.50.21/`,
		Args:    cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := world.Read(*name)
			if err != nil {
				return err
			}
			cmd, err := r.Command(context.Background(), args[0], afterDash(args[1:])...)
			if err != nil {
				return err
			}
			return become(cmd)
		},
	}
}

func kubectlCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:     "kubectl -- ARGS",
		Short:   "Run kubectl as the administrator",
		Example: `  lab kubectl -- get nodes`,
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := world.Read(*name)
			if err != nil {
				return err
			}
			cmd, err := r.Kubectl(context.Background(), args...)
			if err != nil {
				return err
			}
			return become(cmd)
		},
	}
}

func calicoctlCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:     "calicoctl -- ARGS",
		Short:   "Run calicoctl as the administrator",
		Example: `  lab calicoctl -- ipam check`,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := world.Read(*name)
			if err != nil {
				return err
			}
			c, err := r.Calicoctl(cmd.Context(), cmd.ErrOrStderr(), args...)
			if err != nil {
				return err
			}
			return become(c)
		},
	}
}

// afterDash drops the "--" between a host and its command, which the parser of flags keeps because
// it stops at the host.
func afterDash(args []string) []string {
	if len(args) > 1 && args[0] == "--" {
		return args[1:]
	}
	return args
}

// become replaces this process by the command, which then has the terminal and gets the signals.
func become(cmd *exec.Cmd) error {
	if cmd.Err != nil {
		return cmd.Err
	}
	return fmt.Errorf("run %s: %w", cmd.Path, syscall.Exec(cmd.Path, cmd.Args, os.Environ()))
}

func kubeconfigCommand(name *string) *cobra.Command {
	var account, file string
	var life time.Duration
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print a kubeconfig for programs on hosts of a lab",
		Example: `  lab kubeconfig > admin.yaml
  lab kubeconfig --serviceaccount sallyport/sallyport --file /etc/sallyport/kubeconfig`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var text []byte
			if account == "" {
				r, err := world.Read(*name)
				if err != nil {
					return err
				}
				if text, err = r.Kubeconfig(); err != nil {
					return err
				}
			} else if err := ask(cmd.Context(), *name, "POST", "/kubeconfig", kubeconfigRequest{account, life},
				&text); err != nil {
				return err
			}
			if file != "" {
				return os.WriteFile(file, text, 0o600)
			}
			_, err := cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cmd.Flags().StringVar(&account, "serviceaccount", "",
		"NAMESPACE/NAME of the ServiceAccount it is for (default: the administrator)")
	cmd.Flags().StringVar(&file, "file", "", "write it to this file, for its owner only")
	cmd.Flags().DurationVar(&life, "duration", 24*time.Hour, "with --serviceaccount: how long the token is good")
	return cmd
}

func birdcCommand(name *string) *cobra.Command {
	var v6 bool
	cmd := &cobra.Command{
		Use:     "birdc NODE -- ARGS",
		Short:   "Ask the BIRD of a node",
		Example: `  lab birdc worker1 -- show protocols`,
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := world.Read(*name)
			if err != nil {
				return err
			}
			family := 4
			if v6 {
				family = 6
			}
			c, err := r.Birdc(cmd.Context(), args[0], family, afterDash(args[1:])...)
			if err != nil {
				return err
			}
			return become(c)
		},
	}
	cmd.Flags().BoolVarP(&v6, "ipv6", "6", false, "the one of IPv6")
	return cmd
}

func nodeCommand(name *string) *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "Add, remove and disturb the nodes of a lab", Args: cobra.NoArgs}
	for _, verb := range []struct{ use, short string }{
		{"add", "Add a node to the cluster and wait until it is Ready"},
		{"remove", "Drain a node, take it out of the cluster and switch it off"},
		{"lose", "Cut a node's power: it is gone, and the cluster is not told; once its Node is deleted, add " +
			"brings it back"},
		{"kill", "Pull a node's cable: nobody hears from it, and it says no farewell"},
		{"revive", "Plug a node's cable in again"},
	} {
		cmd.AddCommand(&cobra.Command{
			Use: verb.use + " NAME", Short: verb.short, Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return ask(cmd.Context(), *name, "POST", "/node/"+verb.use, nodeRequest{Node: args[0]}, nil)
			},
		})
	}
	var pause time.Duration
	restart := &cobra.Command{
		Use:   "restart-calico NAME",
		Short: "Kill a node's BIRD, as a restart of its calico-node pod does, and start it again",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask(cmd.Context(), *name, "POST", "/node/restart-calico", nodeRequest{args[0], pause}, nil)
		},
	}
	restart.Flags().DurationVar(&pause, "down", 10*time.Second, "how long it stays down")
	cmd.AddCommand(restart)
	return cmd
}

func partitionCommand(name *string) *cobra.Command {
	traffic := world.AllTraffic
	cmd := &cobra.Command{
		Use:   "partition HOST HOST",
		Short: "Keep two hosts from hearing each other, without telling them",
		Example: `  lab partition worker1 appliance
  lab partition --only bgp worker1 appliance`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask(cmd.Context(), *name, "POST", "/partition", partitionRequest{args[0], args[1], traffic}, nil)
		},
	}
	cmd.Flags().StringVar((*string)(&traffic), "only", string(world.AllTraffic),
		"drop only bgp (TCP port 179), vrrp (IP protocol 112) or heartbeat (UDP port 7477); the rest passes")
	return cmd
}

func healCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "heal HOST HOST", Short: "Let two hosts hear each other again", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask(cmd.Context(), *name, "POST", "/heal", partitionRequest{A: args[0], B: args[1]}, nil)
		},
	}
}

func installCalicoCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "install-calico", Short: "Install Calico in a lab that was brought up with --no-calico",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd.Context(), *name, "POST", "/install-calico", nil, nil)
		},
	}
}

func etcdCommand(name *string) *cobra.Command {
	cmd := &cobra.Command{Use: "etcd", Short: "Take a lab's cluster back in time", Args: cobra.NoArgs}
	for use, short := range map[string]string{
		"backup DIR":  "Copy what etcd holds; the control plane is away meanwhile",
		"restore DIR": "Give etcd what it held at a backup, with the revisions it had then",
	} {
		verb, _, _ := strings.Cut(use, " ")
		cmd.AddCommand(&cobra.Command{
			Use: use, Short: short, Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				dir, err := absolute(args[0])
				if err != nil {
					return err
				}
				return ask(cmd.Context(), *name, "POST", "/etcd/"+verb, dir, nil)
			},
		})
	}
	cmd.AddCommand(&cobra.Command{
		Use: "restart", Short: "Kill the control plane and start it again: watches from before are lost",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd.Context(), *name, "POST", "/etcd/restart", nil, nil)
		},
	})
	return cmd
}
