package kic

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
)

// Annotation is the annotation that names a Backend.
const Annotation = "haproxy.org/cr-backend"

// A Field describes a field of a Backend, a Defaults or a Global. The field becomes values of keys, or lines of
// the configuration, or it is left out.
type Field struct {
	Name  string
	Keys  string // keys of ours that say the same, with commas; empty if no key does
	Left  string // why the field is left out; empty if it is not
	Plain bool   // nobody needs to hear that the field is left out
	Rules bool   // its lines may keep clients out
	Parts bool   // its reader tells which of its parts have no effect

	read func(r *reading, text json.RawMessage) error // of a field with Keys
}

// A reading is a Resource while it is made.
type reading struct {
	annotations.Resource
	as     string                     // the key that names the resource
	fields map[string]json.RawMessage // all of them
	lines  map[string]json.RawMessage // fields that become lines
	at     string                     // the field that is read
}

// longest is the most bytes of a spec that is read. As JSON, the longest text that HAProxy gets
// (haproxy.ParseText) has fewer.
const longest = 256 << 10

func checkSize(spec []byte) error {
	if len(spec) > longest {
		return fmt.Errorf("its spec has %d bytes; at most %d are read", len(spec), longest)
	}
	return nil
}

// Backend reads the spec of a Backend. older says that the resource is of ingress.v1.haproxy.org, which has
// the settings of the backend in a field of their own. An error means that nothing of it may be used.
//
// The lines are written only when they are asked for: that takes half a millisecond and more.
func Backend(spec []byte, older bool) (*annotations.Resource, error) {
	if err := checkSize(spec); err != nil {
		return nil, err
	}
	fields, err := fieldsOf(spec, older)
	if err != nil {
		return nil, err
	}
	r := &reading{as: Annotation, fields: fields, lines: make(map[string]json.RawMessage)}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if r.at = name; empty(fields[name]) {
			continue
		}
		if err := r.take(fields[name], older); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := r.check(fields); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(r.lines)) {
		r.Lines = append(r.Lines, name)
		r.Size += len(r.lines[name])
	}
	lines := r.lines
	r.Text = sync.OnceValues(func() (t haproxy.Text, err error) {
		model, err := json.Marshal(lines)
		if err != nil {
			return t, err
		}
		return haproxy.ModelText(haproxy.BackendSection, model)
	})
	return &r.Resource, nil
}

// fieldsOf returns the fields of a Backend as ingress.v3.haproxy.org has them.
func fieldsOf(spec []byte, older bool) (fields map[string]json.RawMessage, err error) {
	if err := json.Unmarshal(spec, &fields); err != nil {
		return nil, fmt.Errorf("its spec cannot be read: %w", err)
	}
	if !older {
		return fields, nil
	}
	parts := fields
	fields = make(map[string]json.RawMessage)
	if !empty(parts["config"]) {
		if err := json.Unmarshal(parts["config"], &fields); err != nil {
			return nil, fmt.Errorf("spec.config cannot be read: %w", err)
		}
	}
	for older, name := range map[string]string{"acls": "acl_list", "http-requests": "http_request_rule_list"} {
		if text, has := parts[older]; has {
			fields[name] = text
		}
	}
	return fields, nil
}

// empty reports whether a field says nothing.
func empty(text json.RawMessage) bool {
	return slices.Contains([]string{"", "null", `""`, "[]", "{}"}, string(bytes.TrimSpace(text)))
}

// take reads the field that r is at.
func (r *reading) take(text json.RawMessage, older bool) error {
	f := known[r.at]
	switch {
	case f == nil:
		return errors.New("the field is not known here, and may keep clients out: remove it")
	case f.Left != "":
		if !f.Plain {
			r.leave(r.at, f.Left)
		}
		return nil
	}
	if err := r.tellUnknown(haproxy.BackendSection, f, text, older); err != nil {
		return err
	}
	if f.read != nil {
		return f.read(r, text)
	}
	r.Rules = r.Rules || f.Rules
	r.lines[r.at] = text
	return nil
}

// tellUnknown notes that parts of the field that r is at are left out, because nobody knows them. It returns an
// error if they may keep clients out.
func (r *reading) tellUnknown(section haproxy.Section, f *Field, text json.RawMessage, older bool) error {
	if f.Parts {
		return nil
	}
	unknown := slices.DeleteFunc(haproxy.UnknownParts(section, modelOf(r.at, text)), func(part string) bool {
		return older && strings.HasSuffix(part, ".index") // the place of a rule, which the list says as well
	})
	for _, part := range unknown {
		r.leave(part, "it is not known here")
	}
	if len(unknown) > 0 && f.Rules {
		return fmt.Errorf("parts that are not known here may keep clients out: remove %s", strings.Join(unknown, ", "))
	}
	return nil
}

// modelOf returns a model with one field. The name of a part of a group is GROUP.PART.
func modelOf(name string, text json.RawMessage) []byte {
	group, part, grouped := strings.Cut(name, ".")
	if grouped {
		return fmt.Appendf(nil, "{%q: {%q: %s}}", group, part, text)
	}
	return fmt.Appendf(nil, "{%q: %s}", name, text)
}

// say adds the value of a key. part is a part of the field that r is at, or empty.
func (r *reading) say(key, part, value string) {
	field := r.at
	if part != "" {
		field += "." + part
	}
	r.Said = append(r.Said, annotations.Said{Key: key, As: r.as, Field: field, Text: value})
}

// leave notes that a field is left out.
func (r *reading) leave(field, why string) { r.Left = append(r.Left, field+" has no effect: "+why) }

// leaveRest notes each part of a field that is not in done, and says something.
func (r *reading) leaveRest(parts map[string]any, why string, done ...string) {
	for _, part := range rest(parts, done) {
		r.leave(r.at+"."+part, why)
	}
}

// rest returns each part, in order, that is not in done and says something.
func rest(parts map[string]any, done []string) (all []string) {
	for _, part := range slices.Sorted(maps.Keys(parts)) {
		if !slices.Contains(done, part) && said(parts[part]) {
			all = append(all, part)
		}
	}
	return all
}

// said reports whether a value says more than its absence.
func said(value any) bool {
	switch v := value.(type) {
	case bool:
		return v
	case string:
		return v != "" && v != "disabled"
	case []any:
		return len(v) > 0
	}
	return value != nil
}

// paramsOf has the values of adv_check by the field with their parameters.
var paramsOf = map[string]string{
	"httpchk_params": "httpchk", "mysql_check_params": "mysql-check", "pgsql_check_params": "pgsql-check",
	"smtpchk_params": "smtpchk",
}

// check looks at fields that mean something only together.
func (r *reading) check(fields map[string]json.RawMessage) error {
	var kind string
	if text, has := r.lines["adv_check"]; has {
		if err := json.Unmarshal(text, &kind); err != nil {
			return fmt.Errorf("adv_check: %w", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(paramsOf)) {
		if !empty(fields[name]) && kind != paramsOf[name] {
			r.leave(name, "adv_check is not "+paramsOf[name])
			delete(r.lines, name)
			delete(fields, name)
		}
	}
	for _, name := range []string{"force_persist", "ignore_persist"} { // the lists replace these
		if one, has := r.lines[name]; has {
			if err := r.prepend(name+"_list", one); err != nil {
				return err
			}
			delete(r.lines, name)
		}
	}
	if empty(fields["httpchk_params"]) {
		return nil
	}
	var p struct{ Method, URI, Version, Host string }
	if err := json.Unmarshal(fields["httpchk_params"], &p); err != nil {
		return fmt.Errorf("httpchk_params: %w", err)
	}
	r.at = "httpchk_params"
	if _, more := r.lines["http_check_list"]; p.Host == "" && !more && p.URI != "" {
		delete(r.lines, "adv_check")
		r.say("check-http", "", strings.TrimSpace(strings.Join([]string{p.Method, p.URI, p.Version}, " ")))
		return nil
	}
	// HAProxy before 3.0 has no host in the line of the option.
	send := map[string]any{"type": "send"}
	for name, value := range map[string]string{"method": p.Method, "uri": p.URI, "version": p.Version} {
		if value != "" {
			send[name] = value
		}
	}
	if p.Host != "" {
		send["headers"] = []any{map[string]any{"name": "Host", "fmt": p.Host}}
	}
	first, err := json.Marshal(send)
	if err != nil {
		return err
	}
	return r.prepend("http_check_list", first)
}

// prepend puts an entry before those of a field that becomes lines.
func (r *reading) prepend(name string, first json.RawMessage) error {
	var list []json.RawMessage
	if text, has := r.lines[name]; has {
		if err := json.Unmarshal(text, &list); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	text, err := json.Marshal(append([]json.RawMessage{first}, list...))
	r.lines[name] = text
	return err
}

// parts reads a field that is an object.
func parts(text json.RawMessage) (all map[string]any, err error) {
	return all, decode(text, &all)
}

// decode reads JSON. Numbers stay as they are written.
func decode(text json.RawMessage, to any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(to)
}

// word returns a part that is a string or a number, or "".
func word(parts map[string]any, name string) string {
	switch v := parts[name].(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	}
	return ""
}

// is reports whether a part is true or "enabled".
func is(parts map[string]any, name string) bool {
	return parts[name] == true || parts[name] == "enabled"
}

// millis reads milliseconds as the value of a key.
func millis(key string) func(*reading, json.RawMessage) error {
	return func(r *reading, text json.RawMessage) error {
		var n int64
		if err := json.Unmarshal(text, &n); err != nil {
			return fmt.Errorf("%s is no number of milliseconds", annotations.Quote(string(text)))
		}
		r.say(key, "", strconv.FormatInt(n, 10)+"ms")
		return nil
	}
}

// abort reads abortonclose.
func abort(r *reading, text json.RawMessage) error {
	var value string
	if err := json.Unmarshal(text, &value); err != nil {
		return err
	}
	r.say("abortonclose", "", strconv.FormatBool(value == "enabled"))
	return nil
}

// balance reads the algorithm and its arguments.
func balance(r *reading, text json.RawMessage) error {
	p, err := parts(text)
	if err != nil {
		return err
	}
	algorithm := word(p, "algorithm")
	option := func(keyword, part string) {
		if v := word(p, part); v != "" && v != "0" {
			algorithm += " " + keyword + v
		}
	}
	flag := func(keyword, part string) {
		if is(p, part) {
			algorithm += " " + keyword
		}
	}
	switch algorithm {
	case "uri":
		flag("path-only", "uri_path_only")
		flag("whole", "uri_whole")
		option("len ", "uri_len")
		option("depth ", "uri_depth")
	case "url_param":
		option("", "url_param")
		if v := word(p, "url_param_check_post"); v != "" && v != "0" {
			algorithm += " check_post"
			option("", "url_param_max_wait")
		}
	case "hdr":
		algorithm += "(" + word(p, "hdr_name") + ")"
		flag("use_domain_only", "hdr_use_domain_only")
	case "random":
		if v := word(p, "random_draws"); v != "" && v != "0" {
			algorithm += "(" + v + ")"
		}
	case "rdp-cookie":
		if v := word(p, "rdp_cookie_name"); v != "" {
			algorithm += "(" + v + ")"
		}
	}
	r.say("load-balance", "", algorithm)
	return nil
}

// cookie reads the session cookie. Its value is always a hash of the server's address.
func cookie(r *reading, text json.RawMessage) error {
	p, err := parts(text)
	if err != nil {
		return err
	}
	r.say("cookie-persistence", "name", word(p, "name"))
	if domains := values(p["domain"]); len(domains) > 0 {
		r.say("sallyport.dev/session-cookie-domain", "domain", domains[0])
		if len(domains) > 1 {
			r.leave(r.at+".domain", "only the first domain is set")
		}
	}
	if is(p, "preserve") {
		r.say("sallyport.dev/session-cookie-preserve", "preserve", "true")
	}
	var keywords []string
	for _, flag := range []string{"httponly", "secure"} {
		if is(p, flag) {
			keywords = append(keywords, flag)
		}
	}
	for _, limit := range []string{"maxidle", "maxlife"} {
		if v := word(p, limit); v != "" && v != "0" {
			keywords = append(keywords, limit+" "+v+"s")
		}
	}
	if len(keywords) > 0 {
		r.say("sallyport.dev/session-cookie-keywords", "", strings.Join(keywords, " "))
	}
	for _, attribute := range values(p["attr"]) {
		name, value, _ := strings.Cut(attribute, "=")
		switch strings.ToLower(name) {
		case "samesite":
			r.say("sallyport.dev/session-cookie-same-site", "attr", value)
		case "path":
			r.say("sallyport.dev/session-cookie-path", "attr", value)
		case "max-age":
			r.say("sallyport.dev/session-cookie-max-age", "attr", value)
		default:
			r.leave(r.at+".attr", "the attributes SameSite, Path and Max-Age can be set")
		}
	}
	if kind := word(p, "type"); kind != "" && kind != "insert" {
		r.leave(r.at+".type", "the cookie is always inserted")
	}
	r.leaveRest(p, "the cookie is set in answers to all requests without it",
		"name", "domain", "preserve", "httponly", "secure", "maxidle", "maxlife", "attr", "type",
		"dynamic", "indirect", "nocache")
	return nil
}

// values returns the values in a list of objects with a value.
func values(list any) (all []string) {
	entries, _ := list.([]any)
	for _, one := range entries {
		if entry, _ := one.(map[string]any); word(entry, "value") != "" {
			all = append(all, word(entry, "value"))
		}
	}
	return all
}

// forward reads the option that adds X-Forwarded-For.
func forward(r *reading, text json.RawMessage) error {
	p, err := parts(text)
	if err != nil {
		return err
	}
	more := word(p, "except")+word(p, "header") != "" || is(p, "ifnone")
	r.say("forwarded-for", "", strconv.FormatBool(is(p, "enabled") && !more))
	if is(p, "enabled") && more {
		r.lines[r.at] = text
	}
	return nil
}

// defaultServer reads the options of all servers. The options of a server are keys, because servers are
// also added by commands, which lines for default-server do not reach.
func defaultServer(r *reading, text json.RawMessage) error {
	p, err := parts(text)
	if err != nil {
		return err
	}
	if v := word(p, "check"); v != "" {
		r.say("check", "check", strconv.FormatBool(v == "enabled"))
	}
	if v := word(p, "inter"); v != "" {
		r.say("check-interval", "inter", v+"ms")
	}
	if v := word(p, "maxconn"); v != "" {
		r.say("pod-maxconn", "maxconn", v)
	}
	if v := word(p, "ssl"); v != "" {
		r.say("server-ssl", "ssl", strconv.FormatBool(v == "enabled"))
	}
	if word(p, "verify") == "required" || word(p, "ssl_cafile") != "" {
		return errors.New("the authority of the servers' certificates is a file there: name a Secret by " +
			"haproxy.org/server-ca, and remove verify and ssl_cafile")
	}
	if word(p, "ssl_certificate") != "" {
		return errors.New("the client certificate is a file there: name a Secret by haproxy.org/server-crt, and " +
			"remove ssl_certificate")
	}
	if sni := word(p, "sni"); sni != "" {
		r.serverName(sni)
	}
	switch proto, alpn := word(p, "proto"), word(p, "alpn"); {
	case proto == "h2" || proto == "" && alpn == "h2":
		r.say("server-proto", "proto", "h2")
	case proto == "h1" || proto == "" && alpn == "http/1.1":
		r.say("server-proto", "proto", "h1")
	case proto != "":
		r.leave(r.at+".proto", "it can be h1 or h2")
	case alpn != "" && alpn != "h2,http/1.1":
		r.leave(r.at+".alpn", "it can be h2, http/1.1 or h2,http/1.1")
	}
	for _, way := range []struct{ part, value string }{
		{"send-proxy", "proxy"},
		{"send-proxy-v2", "proxy-v2"},
		{"send_proxy_v2_ssl", "proxy-v2-ssl"},
		{"send_proxy_v2_ssl_cn", "proxy-v2-ssl-cn"},
	} {
		if is(p, way.part) {
			r.say("send-proxy-protocol", way.part, way.value)
			break
		}
	}
	r.leaveRest(p, "no key says it", "check", "inter", "maxconn", "ssl", "verify", "sni", "proto", "alpn",
		"send-proxy", "send-proxy-v2", "send_proxy_v2_ssl", "send_proxy_v2_ssl_cn")
	return nil
}

// serverName reads the expression of the name that HAProxy asks a server for.
func (r *reading) serverName(expression string) {
	const key = "sallyport.dev/secure-sni"
	name, constant := strings.CutPrefix(expression, "str(")
	switch {
	case constant && strings.HasSuffix(name, ")"):
		r.say(key, "sni", strings.Trim(strings.TrimSuffix(name, ")"), `"'`))
	case expression == "ssl_fc_sni":
		r.say(key, "sni", "sni")
	case strings.HasPrefix(expression, "req.hdr(host)") || strings.HasPrefix(expression, "hdr(host)"):
		r.say(key, "sni", "host")
	default:
		r.leave(r.at+".sni", "it can be str(NAME), ssl_fc_sni or req.hdr(host)")
	}
}
