package kic

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"sallyport/ingress/annotations"
)

// A Port is a port that an entry of a TCP opens. It leads to a Service of the namespace of the TCP.
type Port struct {
	annotations.Stream // without the namespace of the Service
	Entry              string
	Left               []string // a sentence for each field without an effect
	Err                error    // why the port is not served, or nil
}

// TCP reads the spec of a TCP, in its order. An error means that nothing of it can be read.
func TCP(spec []byte) (all []Port, err error) {
	if err := checkSize(spec); err != nil {
		return nil, err
	}
	var entries []struct {
		Name     string
		Frontend map[string]json.RawMessage
		Service  struct {
			Name string
			Port int
		}
		Services []json.RawMessage
	}
	if json.Unmarshal(spec, &entries) != nil {
		return nil, errors.New("its spec is no list of entries, each with name, frontend and service")
	}
	for _, e := range entries {
		to := annotations.ServicePort{
			Service: annotations.Ref{Name: e.Service.Name}, Port: strconv.Itoa(e.Service.Port),
		}
		left, err := frontend(e.Frontend)
		if len(e.Services) > 0 && err == nil {
			left = append(left, "services has no effect: only frontend.backend_switching_rule_list leads there")
		}
		binds, bad := bindsOf(e.Frontend["binds"])
		first := len(all)
		for _, b := range binds {
			p := Port{Stream: annotations.Stream{To: to}, Entry: e.Name, Left: left, Err: err}
			p.listen(b)
			all = join(all, first, p)
		}
		if bad != nil || len(binds) == 0 {
			bad = errors.Join(bad, err)
			if bad == nil {
				bad = errors.New("frontend.binds: it has no port")
			}
			all = append(all, Port{Entry: e.Name, Err: bad})
		}
	}
	return all, nil
}

// join appends a port to those of its entry, which begin at first. An entry often has one port twice, for IPv4 and for
// IPv6. The appliance opens it once, at all addresses: with TLS if one of the binds has it.
func join(all []Port, first int, p Port) []Port {
	i := slices.IndexFunc(all[first:], func(has Port) bool { return p.Port != 0 && has.Port == p.Port })
	if i < 0 {
		return append(all, p)
	}
	has := &all[first+i]
	if has.Err == nil {
		has.Err = p.Err
	}
	if has.Err == nil && has.Proxy != p.Proxy {
		has.Err = fmt.Errorf("frontend.binds: accept_proxy differs in the binds of port %d: a port is the same at "+
			"every address", p.Port)
	}
	for _, why := range p.Left {
		if !slices.Contains(has.Left, why) {
			has.Left = append(slices.Clone(has.Left), why)
		}
	}
	if has.TLS != p.TLS {
		has.TLS = true
		has.Left = append(slices.Clone(has.Left), fmt.Sprintf("frontend.binds: a bind without ssl has no effect, "+
			"since another bind of port %d has it: a port is the same at every address", p.Port))
	}
	return all
}

// bindsOf returns the binds of a frontend: a list, or an object with a name for each.
func bindsOf(text json.RawMessage) (all []map[string]any, err error) {
	if empty(text) {
		return nil, nil
	}
	if decode(text, &all) == nil {
		return all, nil
	}
	var byName map[string]map[string]any
	if err := decode(text, &byName); err != nil {
		return nil, fmt.Errorf("frontend.binds cannot be read: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, byName[name])
	}
	return all, nil
}

// idle are the fields of a frontend that nobody misses.
var idle = strings.Fields("binds name mode id guid metadata description enabled from default_backend tcplog httplog " +
	"httpslog clflog dontlognull dontlog_normal logasap socket_stats")

// closing are the fields of a frontend that may keep clients out, or lead them elsewhere.
var closing = strings.Fields("acl_list tcp_request_rule_list backend_switching_rule_list filter_list disabled " +
	"ssl_front_use_list quic_initial_rule_list http_request_rule_list monitor_fail")

// frontend returns a sentence for each field of a frontend without an effect. An error is about a field
// without which its port must not be open.
func frontend(fields map[string]json.RawMessage) (left []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		var value any
		if json.Unmarshal(fields[name], &value) != nil || !said(value) || empty(fields[name]) {
			continue
		}
		switch {
		case slices.Contains(idle, name):
		case slices.Contains(closing, name):
			return nil, fmt.Errorf("frontend.%s: it may keep clients out or lead them elsewhere, and nothing here "+
				"does that for a port: remove it; %s", name, instead(fields))
		case name == "log_format":
			left = append(left, "frontend.log_format has no effect: log-format-tcp in the ConfigMap sets the format")
		default:
			left = append(left, "frontend."+name+" has no effect: no key says it")
		}
	}
	return left, nil
}

// instead returns what does here what the closing fields of a frontend do.
func instead(fields map[string]json.RawMessage) string {
	if !empty(fields["backend_switching_rule_list"]) {
		return "an Ingress with ssl-passthrough, or a TLSRoute, leads connections to Services by the name that " +
			"clients ask for"
	}
	return "a Service of type LoadBalancer can restrict its clients (spec.loadBalancerSourceRanges)"
}

// partsOfBinds are the parts of a bind that are read, or that nobody misses.
var partsOfBinds = strings.Fields("port address verify ssl_cafile crl_file port-range-end ssl accept_proxy " +
	"ssl_certificate name v4v6 metadata id")

// everywhere are the addresses that stand for all addresses.
var everywhere = []string{"", "*", "0.0.0.0", "::", "[::]"}

// listen reads a bind.
func (p *Port) listen(bind map[string]any) {
	refuse := func(format string, args ...any) {
		if p.Err == nil {
			p.Err = fmt.Errorf("frontend.binds: "+format, args...)
		}
	}
	n, err := strconv.ParseUint(word(bind, "port"), 10, 16)
	if err != nil || n == 0 {
		refuse("%s is not a port from 1 to 65535", annotations.Quote(word(bind, "port")))
		return
	}
	p.Port = uint16(n)
	if address := word(bind, "address"); !slices.Contains(everywhere, address) {
		refuse("a port is open at every address of the appliance, not at %s alone: remove the address",
			annotations.Quote(address))
	}
	if word(bind, "verify") == "required" || word(bind, "ssl_cafile") != "" || word(bind, "crl_file") != "" {
		refuse("no port asks clients for certificates: remove verify and ssl_cafile")
	}
	if word(bind, "port-range-end") != "" {
		refuse("port-range-end: write a bind for each port")
	}
	p.TLS, p.Proxy = is(bind, "ssl"), is(bind, "accept_proxy")
	if word(bind, "ssl_certificate") != "" {
		p.Left = append(slices.Clone(p.Left), "frontend.binds.ssl_certificate has no effect: the port has the "+
			"certificates of the Ingresses, by the name that a client asks for")
	}
	for _, part := range rest(bind, partsOfBinds) {
		p.Left = append(slices.Clone(p.Left), "frontend.binds."+part+" has no effect: no key says it")
	}
}
