package haproxy

import "strings"

// WWW takes the place of a Route's Backend. HAProxy redirects its requests to the OtherName of their host,
// with the same scheme, port, path and query.
const WWW = "www"

// OtherName returns a host with "www." in front, or without it if the host begins with that.
func OtherName(host string) string {
	if rest, has := strings.CutPrefix(host, "www."); has {
		return rest
	}
	return "www." + host
}

// writeWWW writes the backend of WWW. The file has it even without such a route: the first one then needs
// no reload.
func (h *head) writeWWW() {
	to := func(host string) string {
		return "http-request redirect location %[req.hdr(x-forwarded-proto)]://" + host + "%[pathq] code 308"
	}
	h.section("backend", WWW)
	h.line(to("%[req.hdr(host),lower,field(2,.,0)]"), "if { req.hdr(host),lower -m beg www. }")
	h.line(to("www.%[req.hdr(host),lower]"))
}
