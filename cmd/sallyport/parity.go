package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"sallyport/appliance/migrate"
	"sallyport/appliance/parity"
)

func parityCommand() *cobra.Command {
	var q migrate.Question
	var host string
	var places sendFlags
	cmd := &cobra.Command{
		Use: "parity ACCESSLOG (--from CONTROLLER (-f FILE... | --kubeconfig FILE | --config FILE) | " +
			"--send URL --to URL)",
		Short: "Compare the answers in an access log with the routing here",
		Long: `Replay an access log against the routing that the appliance makes of Ingresses, and
show the requests that meet another answer than before: a 404, a redirect, a guard, a
server of another Service, or a server where the proxy itself answered. They are grouped
by host, rule and answer, with their number.

Without --send, no request is sent. What a server answers is not known, so that a request
which reached a server before, and does here, counts as the same. Logs of ingress-nginx
and of HAProxy's controller name the Service, so that it is compared. Not looked at are
auth-url, limits, client certificates, lists of patterns, the conditions of canaries, and
Gateway API.

With --send and --to, the GET and HEAD requests of the log are sent to both places, each
different one once, and their answers are compared: status, Location, the headers of
--header, and whether the certificate is for the host. Content-Type is not compared if both
redirect. The host of the log is in Host and in TLS, whatever the URLs name. Queries,
cookies and credentials are not sent, redirects are not followed, and bodies are not
compared. Where the log has the scheme, only the lines with that of the URLs are sent.

A line is one of nginx' combined form, of ingress-nginx, of Apache's combined form with
or without the virtual host, of HAProxy's httplog, or an object of JSON. nginx' combined
form has no host: --host names it. ACCESSLOG is a file, or - for the standard input.

The exit code is 1 if a request meets another answer, or no line was compared.`,
		Example: `  sallyport parity access.log --from nginx -f manifests/ --host www.shop.example
  zcat access.log.*.gz | sallyport parity - --from nginx --kubeconfig ~/.kube/config -o json
  sallyport parity access.log --send https://192.0.2.10 --to https://192.0.2.20 --rate 5`,
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
	places.add(cmd)
	cmd.MarkFlagsMutuallyExclusive("filename", "kubeconfig")
	cmd.MarkFlagsOneRequired("filename", "kubeconfig", "config", "send")
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
		if places.before != "" {
			return places.run(cmd, log, host, output.value)
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

// sendFlags are the flags of a parity that sends requests.
type sendFlags struct {
	before, now string
	headers     []string
	rate, most  int
	timeout     time.Duration
}

func (f *sendFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.before, "send", "", "URL of the controller of before; its answers are compared with "+
		"those of --to")
	flags.StringVar(&f.now, "to", "", "URL of the appliance, with the scheme of --send")
	flags.StringSliceVar(&f.headers, "header", parity.UsualHeaders, "headers of answers that are compared, "+
		"with --send; of Set-Cookie, the names")
	flags.IntVar(&f.rate, "rate", 10, "requests a second to each place, with --send: 1 to 1000")
	flags.IntVar(&f.most, "most", 1000, "most different requests that are sent, with --send: up to 1000000")
	flags.DurationVar(&f.timeout, "timeout", 5*time.Second, "how long an answer may take, with --send")
	cmd.MarkFlagsRequiredTogether("send", "to")
	for _, other := range []string{"filename", "kubeconfig", "config"} {
		cmd.MarkFlagsMutuallyExclusive("send", other)
	}
}

// sending returns the Sending of the flags. An error names the flag that is wrong.
func (f *sendFlags) sending(host string) (s parity.Sending, err error) {
	s = parity.Sending{Host: host, Headers: f.headers, Most: f.most, Timeout: f.timeout}
	if s.Before, err = parity.ParsePlace(f.before); err != nil {
		return s, fmt.Errorf("--send: %w", err)
	}
	if s.Now, err = parity.ParsePlace(f.now); err != nil {
		return s, fmt.Errorf("--to: %w", err)
	}
	switch {
	case s.Before.Scheme != s.Now.Scheme:
		return s, errors.New("--send and --to need the same scheme: run the command once for http and once for https")
	case f.rate < 1 || f.rate > 1000:
		return s, errors.New("--rate: allowed are 1 to 1000")
	case f.most < 1 || f.most > 1000000:
		return s, errors.New("--most: allowed are 1 to 1000000")
	case f.timeout <= 0:
		return s, errors.New("--timeout: want a time, as 5s")
	}
	return s, nil
}

// run sends the requests of a log, and writes what differs.
func (f *sendFlags) run(cmd *cobra.Command, log io.Reader, host, form string) error {
	s, err := f.sending(host)
	if err != nil {
		return &failure{exitUsage, err}
	}
	ticker := time.NewTicker(time.Second / time.Duration(f.rate))
	defer ticker.Stop()
	s.Tick = ticker.C
	s.Progress = func(sent, of int) {
		if sent > 0 && sent%(10*f.rate) == 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "sent %d of %d requests\n", sent, of)
		}
	}
	sent, err := parity.Send(cmd.Context(), log, s)
	if err != nil {
		return err
	}
	if err := writeSent(cmd.OutOrStdout(), &sent, form); err != nil {
		return err
	}
	switch {
	case sent.Different > 0:
		return errors.New("requests have another answer than before")
	case sent.Unanswered > 0:
		return errors.New("requests have no answer")
	case sent.Same == 0:
		return errors.New("no request was compared")
	}
	return nil
}

// writeSent writes the result of sent requests in a form.
func writeSent(out io.Writer, s *parity.Sent, form string) error {
	if form == "json" {
		return writeJSON(out, s)
	}
	b := migrate.Block{
		Title: "Requests with another answer", Alarm: true,
		Columns: []string{"host", "what", "before", "here", "requests", "lines", "for example"},
	}
	for _, d := range s.Groups {
		b.Rows = append(b.Rows, []string{
			d.Host, d.What, cmp.Or(d.Before, "-"), cmp.Or(d.Now, "-"), strconv.FormatInt(d.Requests, 10),
			strconv.FormatInt(d.Lines, 10), d.Example,
		})
	}
	title := fmt.Sprintf("Requests sent to both: %d, out of %d lines of the log", s.Requests, s.Lines)
	return writeCompared(out, title, s.Words(), b)
}

// writeParity writes a Report in a form.
func writeParity(out io.Writer, r *parity.Report, form string) error {
	if form == "json" {
		return writeJSON(out, r)
	}
	b := migrate.Block{
		Title: "Requests that meet another answer", Alarm: true,
		Columns: []string{"host", "rule", "before", "here", "requests", "for example", "ingress", "why"},
	}
	for _, g := range r.Groups {
		now := string(g.Code)
		if g.Now > 0 {
			now = strconv.Itoa(g.Now)
		}
		b.Rows = append(b.Rows, []string{
			g.Host, g.Rule, strconv.Itoa(g.Before), now, strconv.FormatInt(g.Requests, 10), g.Example,
			cmp.Or(g.Ingress, "-"), g.Why,
		})
	}
	return writeCompared(out, "Requests of the log: "+strconv.FormatInt(r.Lines, 10), r.Words(), b)
}

// writeCompared writes the totals of a comparison under a title. If there are differences, a block with them follows.
func writeCompared(out io.Writer, title string, totals []string, differences migrate.Block) error {
	t, b := newWriter(), migrate.Block{Title: title}
	for _, words := range totals {
		b.Rows = append(b.Rows, []string{words})
	}
	t.block(b)
	if len(differences.Rows) > 0 {
		t.block(differences)
	}
	return t.writeTo(out)
}
