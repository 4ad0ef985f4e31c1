package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"sallyport/test/lab/world"
)

// look prints the manifests on the appliance's host, where they follow the cluster. told is the
// text on stderr.
func (r *testbed) look(flags ...string) (manifests, told string) {
	r.t.Helper()
	args := append([]string{
		r.file("sallyport"), "manifests", "--config", r.file("sallyport.yaml"), "--address",
		"192.168.50.21",
	}, flags...)
	cmd := r.Command(r.t.Context(), world.Appliance, args...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		r.t.Fatalf("sallyport manifests: %v\n%s", err, stderr.String())
	}
	return stdout.String(), stderr.String()
}

// tryApply runs kubectl apply. An error has the output.
func (r *testbed) tryApply(manifest string, flags ...string) error {
	cmd := r.Lab.Kubectl(r.t.Context(), append([]string{"apply", "-f", "-"}, flags...)...)
	cmd.Stdin = strings.NewReader(manifest)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// TestTheManifestsFollowTheCluster needs a cluster alone: no appliance runs.
func TestTheManifestsFollowTheCluster(t *testing.T) {
	beside(t, short)
	r := newTestbed(t, world.Options{Name: "applied", Workers: 1}, settings{})
	offline, err := r.Manifests(t.Context())
	r.must(err)
	r.removeNothing()
	r.protectEachNode(offline)
}

// removeNothing checks that the manifests leave what an administrator has set as it is.
func (r *testbed) removeNothing() {
	const theirs = `
apiVersion: crd.projectcalico.org/v1
kind: BGPConfiguration
metadata: {name: default}
spec: {asNumber: 65000, nodeToNodeMeshEnabled: false, logSeverityScreen: Warning, serviceClusterIPs: [{cidr: 10.96.0.0/16}], communities: [{name: a, value: "1:2"}]}
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: haproxy, annotations: {ingressclass.kubernetes.io/is-default-class: "true"}, labels: {team: web}}
spec: {controller: haproxy.org/ingress-controller}
`
	settings := func(r *testbed) string {
		return r.kubectl("get", "bgpconfiguration", "default", "-o", "jsonpath={.spec}") +
			r.kubectl("get", "ingressclass", "haproxy", "-o",
				"jsonpath={.metadata.annotations['ingressclass\\.kubernetes\\.io/is-default-class']} "+
					"{.metadata.labels}")
	}
	for _, way := range []struct {
		admin, our []string
	}{
		{},
		{[]string{"--server-side"}, []string{"--server-side"}},
		{nil, []string{"--server-side", "--field-manager=sallyport"}},
	} {
		r.sub(fmt.Sprintf("an administrator has applied objects by %q, and we apply ours by %q", way.admin, way.our),
			func(t *testing.T, r *testbed) {
				r.kubectl("delete", "bgpconfiguration/default", "ingressclass/haproxy")
				r.must(r.tryApply(theirs, way.admin...))
				want := settings(r)
				if !strings.Contains(want, "10.96.0.0/16") || !strings.Contains(want, "true") {
					t.Fatalf("the administrator's objects hold %s", want)
				}
				for range 2 {
					manifests, told := r.look()
					if !strings.Contains(told, "No BGPConfiguration") || !strings.Contains(told, "No IngressClass") {
						t.Errorf("told %q, want why both are left out", told)
					}
					r.must(r.tryApply(manifests, append(way.our, "--force-conflicts="+fmt.Sprint(way.our != nil))...))
					if got := settings(r); got != want {
						t.Errorf("got %s, want %s", got, want)
					}
				}
			})
	}
}

// definesFilters replaces the definition of BGPFilters by one whose rules have these fields.
func (r *testbed) definesFilters(required string, fields ...string) {
	r.t.Helper()
	rule := "{type: object, required: [" + required + "], properties: {" + strings.Join(fields, ": {type: string}, ") +
		": {type: string}}}"
	rules := "{type: array, items: " + rule + "}"
	r.kubectl("delete", "crd", "bgpfilters.crd.projectcalico.org", "--ignore-not-found")
	r.apply(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: bgpfilters.crd.projectcalico.org}
spec:
  group: crd.projectcalico.org
  scope: Cluster
  names: {kind: BGPFilter, listKind: BGPFilterList, plural: bgpfilters, singular: bgpfilter}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {importV4: ` + rules + `, importV6: ` + rules + `, exportV4: ` + rules + `, exportV6: ` + rules + `}}}}}
`)
	r.kubectl("wait", "--for=condition=Established", "crd/bgpfilters.crd.projectcalico.org", "--timeout=60s")
}

// sees waits until the manifests that follow the cluster have, or do not have, a part.
func (r *testbed) sees(part string, want bool) (manifests, told string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("the manifests follow the cluster: %q %t", part, want), func() error {
		if manifests, told = r.look(); strings.Contains(manifests, part) != want {
			return errors.New(told)
		}
		return nil
	})
	return manifests, told
}

// protectEachNode checks that no node peers without the filter that protects it, in clusters of older
// Calicos. The offline manifests do not know the cluster.
func (r *testbed) protectEachNode(offline string) {
	const filters, peer, both = "bgpfilters", "bgppeer/sallyport-192-168-50-21", "No BGPFilter and no BGPPeer"
	r.sub("Calico 3.28 has both filters", func(t *testing.T, r *testbed) {
		r.kubectl("delete", peer)
		r.definesFilters("action", "action", "cidr", "matchOperator", "source", "interface")
		manifests, _ := r.sees("sallyport-own", true)
		r.must(r.tryApply(manifests))
		r.must(r.tryApply(offline))
	})
	r.sub("Calico 3.26 takes the filter that protects, and with it the peer", func(t *testing.T, r *testbed) {
		r.kubectl("delete", peer)
		r.definesFilters("action, cidr, matchOperator", "action", "cidr", "matchOperator")
		manifests, told := r.sees("sallyport-own", false)
		if !strings.Contains(told, "older than 3.27") {
			t.Errorf("told %q, want why a filter is left out", told)
		}
		r.must(r.tryApply(manifests))
		if got, want := r.kubectl("get", filters, "-o", "name"),
			"bgpfilter.crd.projectcalico.org/sallyport"; got != want {
			t.Errorf("filters %q, want %q", got, want)
		}
		r.kubectl("get", peer)
	})
	r.sub("Calico 3.26 takes as much of the manifests that do not know it", func(t *testing.T, r *testbed) {
		r.kubectl("delete", peer, "bgpfilter/sallyport")
		err := r.tryApply(offline)
		if err == nil || !strings.Contains(err.Error(), `unknown field "spec.exportV4[0].source"`) {
			t.Errorf("got %v, want an error about the source of a rule", err)
		}
		if got, want := r.kubectl("get", filters, "-o", "name"),
			"bgpfilter.crd.projectcalico.org/sallyport"; got != want {
			t.Errorf("filters %q, want %q", got, want)
		}
		r.kubectl("get", peer)
	})
	r.sub("Calico 3.25 takes no peer", func(t *testing.T, r *testbed) {
		r.kubectl("delete", peer)
		r.kubectl("delete", "crd", "bgpfilters.crd.projectcalico.org")
		r.kubectl("patch", "crd", "bgppeers.crd.projectcalico.org", "--type=json", "-p",
			`[{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec", "value": {"type": "object", "properties": {"peerIP": {"type": "string"}, "asNumber": {"type": "integer"}, "nodeSelector": {"type": "string"}}}}]`)
		manifests, told := r.sees("kind: BGPPeer", false)
		if !strings.Contains(told, both) {
			t.Errorf("told %q, want %q", told, both)
		}
		r.must(r.tryApply(manifests))
		r.eventually("the manifests that do not know it are rejected for their fields", func() error {
			err := r.tryApply(offline)
			if err == nil || !strings.Contains(err.Error(), `unknown field "spec.filters"`) {
				return fmt.Errorf("got %w, want an error about the filters of a peer", err)
			}
			return nil
		})
		if got := r.kubectl("get", "bgppeers", "-o", "name"); got != "" {
			t.Errorf("peers %q, want none", got)
		}
	})
}
