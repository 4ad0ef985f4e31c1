package main

import (
	"slices"
	"strings"
	"testing"

	"sallyport/ingress/annotations"
)

// unseen names the keys that no case can show, and why.
var unseen = map[string]string{
	"nbthread":                        "threads are seen from within alone",
	"sallyport.dev/address":           "it is for Services of type LoadBalancer, which need a group: test/e2e has one",
	"sallyport.dev/share-address":     "it is for Services of type LoadBalancer, which need a group: test/e2e has one",
	"sallyport.dev/cluster-weight":    "it is for several clusters: test/e2e has two",
	"clean-certs":                     "it is read, and does nothing",
	"prometheus-endpoint-auth-secret": "it is read, and does nothing",
	"scale-server-slots":              "it is read, and does nothing",
	"standalone-backend":              "it is read, and does nothing",
	"stats-config-snippet":            "it is read, and does nothing",
}

func TestEveryKeyHasACase(t *testing.T) {
	var said []string
	for _, c := range cases() {
		said = slices.Concat(said, c.config, c.ingress, c.service, c.canary)
	}
	said = append(said, strings.Split(configMaps, "\n  ")...) // what the ConfigMap says all the time
	for _, d := range annotations.Docs() {
		name := d.Name
		if d.Scopes == annotations.ConfigMap { // where keys have no prefix
			name = strings.TrimPrefix(name, "sallyport.dev/")
		}
		has := slices.ContainsFunc(said, func(s string) bool {
			return strings.HasPrefix(s, name+": ") || strings.HasPrefix(s, "haproxy.org/"+d.Name+": ")
		})
		if why := unseen[d.Name]; has == (why != "") {
			t.Errorf("%s: a case: %v; why there is none: %q", d.Name, has, why)
		}
	}
}
