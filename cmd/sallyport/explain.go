package main

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/appliance"
)

func explainCommand() *cobra.Command {
	var cluster string
	cmd := &cobra.Command{
		Use:   "explain NAMESPACE/INGRESS",
		Short: "Show how an Ingress is served",
		Long: `Show how an Ingress is served: its hosts and paths and their backends, the keys in
effect and the object that sets each, the servers, and the problems.`,
		Example: `  sallyport explain default/web
  sallyport explain default/web --cluster east -o json`,
		Args: cobra.ExactArgs(1),
	}
	endpoint := endpointFlags(cmd)
	cmd.Flags().StringVar(&cluster, "cluster", "", "name of the Ingress's cluster, if there are several")
	output := oneOfFlag(cmd, "output", "o", "form of the output", "text", "json")
	cmd.RunE = work(func(cmd *cobra.Command, args []string) error {
		if strings.Count(args[0], "/") != 1 {
			return fmt.Errorf("%q: want NAMESPACE/INGRESS", args[0])
		}
		page := "/explain?" + url.Values{"ingress": {args[0]}, "cluster": {cluster}}.Encode()
		return show(cmd, endpoint, page, output, writeExplanation)
	})
	return cmd
}

// writeExplanation writes the explanation of an Ingress for people.
func writeExplanation(t writer, e appliance.ExplainStatus) {
	t.line(fmt.Sprintf("Ingress %s/%s of cluster %s", e.Ingress.Namespace, e.Ingress.Name, e.Ingress.Cluster))
	t.title("Rules")
	for _, r := range e.Rules {
		https := ""
		if r.HTTPS != "" {
			https = "plain HTTP is redirected, " + r.HTTPS
		}
		t.line("  "+cmp.Or(r.Host, "any host"), r.Path, r.Match, r.Backend, https)
		if r.Canary != "" {
			t.line("  ", "", "", r.Canary)
		}
	}
	if len(e.Rules) == 0 {
		t.line("  none")
	}
	for _, b := range e.Backends {
		t.title("Backend " + b.Name)
		t.line("  " + b.Origin)
		for _, k := range b.Keys {
			t.line("  "+k.As, strings.ReplaceAll(k.Value, "\n", " | "), "from the "+k.Scope)
		}
		for _, d := range b.Directives {
			for line := range strings.SplitSeq(d, "\n") {
				t.line("    " + line)
			}
		}
		for _, s := range e.Servers {
			if s.Name != b.Name {
				continue
			}
			t.line(fmt.Sprintf("  %d of %d servers open", s.Open, len(s.Servers)))
			t.servers(s)
		}
	}
	if len(e.Problems) > 0 {
		t.title("Problems")
		for _, p := range e.Problems {
			t.line(fmt.Sprintf("  %s %s/%s", p.Kind, p.Namespace, p.Name), p.Reason, p.Why)
		}
	}
}
