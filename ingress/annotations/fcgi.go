package annotations

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"sallyport/haproxy"
)

// speaksFCGI is the server-proto of FastCGI.
const speaksFCGI = "fcgi"

var (
	fcgiRoot = define(func(s string) (string, error) { return s, haproxy.CheckFCGIRoot(s) }, Doc{
		Name: own + "fcgi-docroot", Scopes: everywhere, Format: "directory", Default: "/var/www/html",
		Effect: "With server-proto `fcgi`: the directory of the scripts at the servers (DOCUMENT_ROOT, " +
			"SCRIPT_FILENAME).",
	})
	fcgiIndex = define(func(s string) (string, error) { return s, haproxy.CheckFCGIIndex(s) }, Doc{
		Name: own + "fcgi-index", Scopes: everywhere, Format: "name of a file",
		Effect: "With server-proto `fcgi`: the script for a path that ends in `/`.",
	})
	fcgiParams = defineConfigMap(Doc{
		Name: own + "fcgi-params-from", Scopes: notOnTheService,
		Effect: "With server-proto `fcgi`: each entry of this ConfigMap is the name and the value of a parameter of " +
			"FastCGI. A value may hold variables as `fastcgi_param` of nginx has them: " +
			"`$document_root$fastcgi_script_name`. An Ingress can name a ConfigMap of its own namespace.",
	})
)

// errBesideFCGI is the error of keys that need a filter.
var errBesideFCGI = errors.New("HAProxy has it for HTTP to servers, and not for FastCGI (server-proto)")

// fcgiUsual are the parameters that nginx sends, and that HAProxy does not send or has otherwise.
var fcgiUsual = map[string]string{
	"DOCUMENT_URI": "$document_uri", "REDIRECT_STATUS": "200", "REQUEST_SCHEME": "$scheme",
	"REQUEST_URI": "$request_uri", "SERVER_ADDR": "$server_addr", "SERVER_NAME": "$server_name",
}

// fcgiOwn are the parameters that HAProxy sends, with the values that stand for them in nginx.
var fcgiOwn = map[string]string{
	"CONTENT_LENGTH": "$content_length", "CONTENT_TYPE": "$content_type", "DOCUMENT_ROOT": "$document_root",
	"GATEWAY_INTERFACE": "CGI/1.1", "HTTPS": "$https", "QUERY_STRING": "$query_string",
	"REMOTE_ADDR": "$remote_addr", "REMOTE_PORT": "$remote_port", "REQUEST_METHOD": "$request_method",
	"SCRIPT_FILENAME": "$document_root$fastcgi_script_name", "SCRIPT_NAME": "$fastcgi_script_name",
	"SERVER_PORT": "$server_port", "SERVER_PROTOCOL": "$server_protocol",
}

// fcgiVariables returns the variables of nginx that only FastCGI has here.
func fcgiVariables(root string) map[string]string {
	return map[string]string{
		"content_length": "%[req.hdr(content-length)]", "content_type": "%[req.hdr(content-type)]",
		"document_root": haproxy.Literal(root), "fastcgi_script_name": haproxy.FCGIScript,
		"request_uri": haproxy.FCGIURI, "remote_port": "%[src_port]", "server_addr": "%[dst]",
		"server_name": "%[req.hdr(host),host_only,lower]", "server_protocol": "HTTP/%[req.ver]",
	}
}

// fastCGI adds the directives that make the servers speak FastCGI, if HAProxy can.
func fastCGI(v *values, s *Settings) {
	if s.Options.Proto != speaksFCGI {
		return
	}
	s.Options.Proto = ""
	if s.Options.TLS {
		v.wrong(serverProto.Doc, errors.New("servers of FastCGI have no TLS: remove server-ssl, server-ca "+
			"and server-crt"))
		return
	}
	var f haproxy.FCGI
	f.Root, _ = get(v, fcgiRoot)
	f.Index, _ = get(v, fcgiIndex)
	support := v.ask(haproxy.FCGISupport(), &s.Questions)
	if support.Why != "" {
		v.wrong(serverProto.Doc, errors.New("FastCGI needs HAProxy 3.0, since a server can end an older one"))
	}
	if support != haproxy.Good {
		return
	}
	s.Options.Proto = "h1" // whatever the port of the Service speaks
	_, written, err := entriesOf(v, fcgiParams)
	if err != nil {
		v.wrong(fcgiParams.Doc, err)
	}
	variables := fcgiVariables(f.Root)
	all := maps.Clone(fcgiUsual)
	maps.Copy(all, written)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p, value := haproxy.FCGIParam{Name: name}, all[name]
		sent, sends := fcgiOwn[name]
		if sends && value == sent {
			continue
		}
		p.Value, err = Variables(value, variables)
		if err == nil {
			err = p.Check()
		}
		if err == nil && value == "" && sends {
			err = errors.New("HAProxy sends its own value instead of an empty one")
		}
		if err != nil {
			v.report(fcgiParams.Doc, v.scopeOf(fcgiParams.Name), "ParameterLeftOut",
				fmt.Errorf("parameter %s: %w; it is left out", Quote(name), err))
			continue
		}
		f.Params = append(f.Params, p)
	}
	if list, err := f.Directives(); err == nil { // each value was checked
		s.add(list...)
	}
}
