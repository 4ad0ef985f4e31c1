package annotations

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"sallyport/haproxy"
)

var errorPages = define(statuses, Doc{
	Name: own + "error-pages", Scopes: notOnTheService, Format: "statuses from 300 to 599, as `404, 500-504`; or off",
	Effect: "A server's answer with one of these statuses is replaced. The first port of the Service of " +
		"default-backend answers, or else default-backend-service. It gets GET /, or HEAD /, with X-Code, X-Format " +
		"(Accept of the client), X-Original-URI, X-Namespace and X-Request-ID, and the client gets what it answers. " +
		"The server's answer stays if there is no other within 5 seconds, or one of more than 24 kB. Answers that " +
		"HAProxy makes itself are not replaced.",
})

// statuses reads numbers, and ranges of them, with commas between. It returns nil for "off".
func statuses(s string) (all []int, err error) {
	if s == "off" {
		return nil, nil
	}
	for text := range strings.SplitSeq(s, ",") {
		low, high, is := strings.Cut(strings.TrimSpace(text), "-")
		first, err := strconv.Atoi(low)
		last := first
		if is && err == nil {
			last, err = strconv.Atoi(high)
		}
		if err != nil || first < 300 || last > 599 || first > last {
			return nil, fmt.Errorf("%s is neither a status from 300 to 599 nor a range of them, as 500-504",
				Quote(text))
		}
		for status := first; status <= last; status++ {
			all = append(all, status)
		}
	}
	return all, nil
}

// pages adds the directives that replace answers of servers by those of another Service (error-pages).
func pages(v *values, s *Settings) {
	statuses, said := get(v, errorPages)
	if !said || statuses == nil {
		return
	}
	var to ServicePort
	scope := Ingress
	if s.Spare != "" {
		to.Service.Name = s.Spare
	} else if to, said = get(v, defaultBackend); said {
		scope = ConfigMap
	} else {
		v.wrong(errorPages.Doc, errors.New("no Service answers: set default-backend on the Ingress, or "+
			"default-backend-service in the ConfigMap"))
		return
	}
	if !hasLua(v, s, errorPages.Doc) {
		return // yet
	}
	p := haproxy.Page{Namespace: v.env.Namespace, Statuses: statuses}
	var err error
	if p.Backend, err = v.env.Service(scope, to, Pages); err != nil {
		v.wrong(errorPages.Doc, err)
		return
	}
	d, err := p.Directive()
	if err != nil {
		v.wrong(errorPages.Doc, err)
		return
	}
	s.Extras = append(s.Extras, haproxy.AskScript())
	s.add(d)
}
