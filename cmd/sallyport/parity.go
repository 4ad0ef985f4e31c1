package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"sallyport/appliance/migrate"
	"sallyport/appliance/parity"
)

func parityCommand() *cobra.Command {
	var q migrate.Question
	var host string
	cmd := &cobra.Command{
		Use:   "parity ACCESSLOG --from CONTROLLER (-f FILE... | --kubeconfig FILE | --config FILE)",
		Short: "Compare the answers in an access log with the routing here, without a request",
		Long: `Replay an access log against the routing that the appliance makes of Ingresses, and
show the requests that meet another answer than before: a 404, a redirect, a guard, or a
server where the proxy itself answered. They are grouped by host, rule and answer, with
their number.

No request is sent. What a server answers is not known, so that a request which reached a
server before, and does here, counts as the same. Not looked at are auth-url, limits,
client certificates, lists of patterns, the conditions of canaries, and Gateway API.

A line is one of nginx' combined form, of ingress-nginx, of Apache's combined form with
or without the virtual host, of HAProxy's httplog, or an object of JSON. nginx' combined
form has no host: --host names it. ACCESSLOG is a file, or - for the standard input.

The exit code is 1 if a request meets another answer, or no line was compared.`,
		Example: `  sallyport parity access.log --from nginx -f manifests/ --host www.shop.example
  zcat access.log.*.gz | sallyport parity - --from nginx --kubeconfig ~/.kube/config -o json`,
		Args: cobra.ExactArgs(1),
	}
	from := oneOfFlag(cmd, "from", "", "the controller that the Ingresses were written for", "nginx", "haproxy")
	output := oneOfFlag(cmd, "output", "o", "form of the output", "text", "json")
	flags := cmd.Flags()
	flags.StringArrayVarP(&q.Files, "filename", "f", nil, "file or folder with YAML or JSON (may be repeated)")
	flags.BoolVarP(&q.Recursive, "recursive", "R", false, "also read the folders within the folders of -f")
	flags.StringVarP(&q.Namespace, "namespace", "n", "default", "namespace of objects in files that name none")
	flags.StringSliceVar(&q.Classes, "class", nil, "IngressClasses of the controller, with commas")
	flags.StringVarP(&q.Config, "config", "c", "", "a configuration file, whose settings apply")
	flags.StringVar(&q.Kubeconfig, "kubeconfig", "", "kubeconfig of a cluster to read")
	flags.StringVar(&host, "host", "", "host of the requests in lines without one")
	cmd.MarkFlagsMutuallyExclusive("filename", "kubeconfig")
	cmd.MarkFlagsOneRequired("filename", "kubeconfig", "config")
	cmd.RunE = work(func(cmd *cobra.Command, args []string) error {
		q.From = from.value
		log := cmd.InOrStdin()
		if args[0] != "-" {
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close() //nolint:errcheck // it was only read
			log = f
		}
		result, err := migrate.Together(cmd.Context(), q)
		switch {
		case errors.Is(err, migrate.ErrConfig):
			return badConfig(err)
		case err != nil:
			return err
		}
		r, err := parity.Replay(result, log, host)
		if err != nil {
			return err
		}
		if err := writeParity(cmd.OutOrStdout(), &r, output.value); err != nil {
			return err
		}
		switch {
		case r.Different > 0:
			return errors.New("requests meet another answer than before")
		case r.Same == 0:
			return errors.New("no line was compared")
		}
		return nil
	})
	return cmd
}

// writeParity writes a Report in a form.
func writeParity(out io.Writer, r *parity.Report, form string) error {
	if form == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	t := newWriter()
	totals := migrate.Block{Title: "Requests of the log: " + strconv.FormatInt(r.Lines, 10)}
	for _, words := range r.Words() {
		totals.Rows = append(totals.Rows, []string{words})
	}
	t.block(totals)
	if len(r.Groups) > 0 {
		b := migrate.Block{
			Title: "Requests that meet another answer", Alarm: true,
			Columns: []string{"host", "rule", "before", "here", "requests", "for example", "ingress", "why"},
		}
		for _, g := range r.Groups {
			now := string(g.Code)
			if g.Now > 0 {
				now = strconv.Itoa(g.Now)
			}
			name := g.Ingress
			if name == "" {
				name = "-"
			}
			b.Rows = append(b.Rows, []string{
				g.Host, g.Rule, strconv.Itoa(g.Before), now, strconv.FormatInt(g.Requests, 10), g.Example, name, g.Why,
			})
		}
		t.block(b)
	}
	return t.writeTo(out)
}
