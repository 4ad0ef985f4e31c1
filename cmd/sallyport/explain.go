package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/appliance/status"
)

func explainCommand() *cobra.Command {
	var cluster, to, method string
	var headers []string
	cmd := &cobra.Command{
		Use:   "explain NAMESPACE/INGRESS | NAMESPACE/SERVICE | KIND/NAMESPACE/NAME | http://HOST/PATH | ADDRESS",
		Short: "Show how an Ingress, a Service, a Gateway, a route, a request or an address is served",
		Long: `Show how an Ingress is served: its hosts and paths and their backends, the keys in
effect and the object that sets each, the servers, and the problems. For a Service of type
LoadBalancer it shows the addresses, why the Service has these, who announces them, the
ports, and the servers.

For a Gateway it shows the addresses, the listeners and the conditions. For a route of
Gateway API (httproute, grpcroute, tlsroute, tcproute) it shows where the route is
attached, its rules with their filters and backends, the servers, and the conditions.

For a URL it shows the rule that takes the request, and the same of that rule. A Gateway
has addresses of its own: --to names one, -X the method, and -H a header. For the
address of a pod or node it shows what each part on the way has: the cluster's records,
BGP, the kernel, and HAProxy. For an address that clients connect to it shows the Service,
what this machine does with the address, and where its ports lead.`,
		Example: `  sallyport explain default/web
  sallyport explain http://test.local/api
  sallyport explain httproute/shop/app
  sallyport explain http://www.shop.example/cart --to 203.0.113.5 -H 'x-canary: yes'
  sallyport explain 172.16.171.66
  sallyport explain 203.0.113.70
  sallyport explain default/web --cluster east -o json`,
		Args: cobra.ExactArgs(1),
	}
	endpoint := endpointFlags(cmd)
	cmd.Flags().StringVar(&cluster, "cluster", "",
		"name of the cluster of the object, if there are several")
	cmd.Flags().StringVar(&to, "to", "", "ADDRESS or ADDRESS:PORT of a Gateway that the request of a URL goes to")
	cmd.Flags().StringVarP(&method, "method", "X", "", "method of the request, with --to (default GET)")
	cmd.Flags().StringArrayVarP(&headers, "header", "H", nil, "'NAME: VALUE' of a header of the request, with --to")
	output := oneOfFlag(cmd, "output", "o", "form of the output", "text", "json", "yaml")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string,
		typed string,
	) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names, err := completeName(cmd, endpoint, typed, cluster)
		if err != nil {
			cobra.CompErrorln(err.Error())
			return nil, cobra.ShellCompDirectiveError
		}
		if slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, "/") }) {
			return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	cmd.RunE = work(func(cmd *cobra.Command, args []string) error {
		ask := func(key, value string) string {
			return "/explain?" + url.Values{key: {value}, "cluster": {cluster}}.Encode()
		}
		what := args[0]
		if addr, err := netip.ParseAddr(what); err == nil {
			return show(cmd, endpoint, ask("address", addr.String()), output, nil, writeAddress)
		}
		u, err := url.Parse(what)
		request := err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
		switch {
		case to == "" && (method != "" || len(headers) > 0) || to != "" && !request:
			return &failure{
				exitUsage, errors.New("--method and --header need --to, and --to needs http://HOST/PATH: they are " +
					"for a request to a Gateway"),
			}
		case to != "":
			query, err := requestTo(u, to, method, headers)
			if err != nil {
				return err
			}
			return show(cmd, endpoint, "/explain?"+query.Encode(), output, nil, writeExplanation)
		case request:
			return show(cmd, endpoint, ask("request", u.Host+cmp.Or(u.EscapedPath(), "/")), output, nil,
				writeExplanation)
		}
		kind, _, _ := strings.Cut(strings.ToLower(what), "/")
		if strings.Count(what, "/") == 2 && slices.Contains(apiKinds, kind) {
			return show(cmd, endpoint, ask("object", what), output, nil, writeExplanation)
		}
		if strings.Count(what, "/") != 1 || strings.Contains(what, ":") {
			return &failure{
				exitUsage,
				fmt.Errorf("%q: want NAMESPACE/INGRESS, NAMESPACE/SERVICE, KIND/NAMESPACE/NAME (KIND is %s), "+
					"http://HOST/PATH, or an IP address", what, strings.Join(apiKinds, ", ")),
			}
		}
		return show(cmd, endpoint, ask("ingress", what), output, nil, writeExplanation)
	})
	return cmd
}

// apiKinds are the kinds of Gateway API that can be explained.
var apiKinds = []string{"gateway", "httproute", "grpcroute", "tlsroute", "tcproute"}

// requestTo returns the question about a request to a Gateway. An address without a port gets the
// port of the URL.
func requestTo(u *url.URL, to, method string, headers []string) (url.Values, error) {
	at, err := netip.ParseAddrPort(to)
	if addr, alone := netip.ParseAddr(to); alone == nil {
		port := map[string]uint16{"http": 80, "https": 443}[u.Scheme]
		if n, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
			port = uint16(n)
		}
		at, err = netip.AddrPortFrom(addr, port), nil
	}
	if err != nil {
		return nil, &failure{exitUsage, fmt.Errorf("--to %q: want ADDRESS or ADDRESS:PORT", to)}
	}
	for _, line := range headers {
		if name, _, is := strings.Cut(line, ":"); !is || name == "" {
			return nil, &failure{exitUsage, fmt.Errorf("--header %q: want 'NAME: VALUE'", line)}
		}
	}
	return url.Values{
		"request": {u.Host + u.RequestURI()}, "to": {at.String()}, "method": {method}, "header": headers,
	}, nil
}

// completeName asks the appliance how the name of an Ingress, or of a Service of type
// LoadBalancer, may go on. A shell waits for it, so it takes 2 s at most.
func completeName(cmd *cobra.Command, endpoint func() (status.Endpoint, error),
	typed, cluster string,
) (names []string, err error) {
	at, err := endpoint()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	body, err := at.Ask(ctx, "/explain?"+url.Values{"complete": {typed}, "cluster": {cluster}}.Encode())
	if err != nil {
		return nil, err
	}
	return names, json.Unmarshal(body, &names)
}

// gatewayAPI writes what belongs to an object of Gateway API: its listeners, where it is attached,
// and its conditions.
func (t writer) gatewayAPI(e status.ExplainStatus) {
	if e.Gateway != nil {
		t.title("Listeners")
		t.writeTable(status.GatewayTable, &status.Status{Gateways: append(status.Status{}.Gateways, *e.Gateway)}, false,
			"  ")
	} else {
		for _, sentence := range e.Attached {
			t.line("  " + sentence)
		}
	}
	if len(e.Conditions) == 0 {
		return
	}
	t.title("Conditions")
	for _, c := range e.Conditions {
		if !c.Good() {
			t.alarm()
		}
		t.line("  "+cmp.Or(c.Of, "-"), c.Type, c.Status, c.Reason, c.Message)
	}
}

// writeAddress writes the facts about an address for people.
func writeAddress(t writer, a status.AddressStatus) {
	t.line("Address " + a.Address.String())
	t.facts(a)
}

func (t writer) facts(a status.AddressStatus) {
	for _, f := range a.Facts {
		if !f.OK {
			t.alarm()
		}
		t.line("  "+f.Part, status.Either(f.OK, "ok", "NOT ok"), f.Saw)
	}
}

// writeExplanation writes the explanation of an Ingress or a request for people.
func writeExplanation(t writer, e status.ExplainStatus) {
	if e.Request != "" {
		t.line("Request for " + e.Request)
		if e.Why != "" {
			t.line("  " + e.Why)
		}
	}
	if e.Ingress.Name != "" {
		t.line(fmt.Sprintf("%s %s/%s of cluster %s", e.Ingress.Kind, e.Ingress.Namespace, e.Ingress.Name,
			e.Ingress.Cluster))
	}
	for _, a := range e.Addresses {
		t.title("Address " + a.Address.String())
		t.facts(a)
	}
	if e.Service != nil && len(e.Addresses) == 0 {
		t.alarm()
		t.line("  no address: " + cmp.Or(e.Service.Why, "it waits for one"))
	}
	t.gatewayAPI(e)
	if e.Ingress.Kind != "Service" && e.Gateway == nil {
		t.title("Rules")
		if len(e.Rules) == 0 {
			t.line("  none")
		}
	}
	for _, r := range e.Rules {
		https, to := "", cmp.Or(r.Backend, "status 404")
		if r.HTTPS != "" {
			https = "plain HTTP is redirected, " + r.HTTPS
		}
		if r.Backend == "" && r.Rule > 0 && https != "" { // over TLS other rules count
			to = ""
		}
		place := "  "
		if r.Rule > 0 {
			place += fmt.Sprintf("rule %d, ", r.Rule)
		}
		t.line(place+cmp.Or(r.Host, "any host"), r.Path, r.Match, to, https)
		if r.When != "" {
			t.line("    if " + r.When)
		}
		for _, does := range r.Filters {
			t.line("    " + does)
		}
		for _, one := range r.Choices {
			t.line("    " + one)
		}
		if r.Canary != "" {
			t.line("  ", "", "", r.Canary)
		}
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
	if len(e.Waits) > 0 {
		t.title("Waits")
		for _, w := range e.Waits {
			t.line("  " + w.Words(e.Now))
		}
	}
	if len(e.Problems) > 0 {
		t.title("Problems")
		for _, p := range e.Problems {
			t.line(fmt.Sprintf("  %s %s/%s", p.Kind, p.Namespace, p.Name), p.Reason, p.Why)
		}
	}
}
