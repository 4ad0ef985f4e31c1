package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sallyport/test/lab/world"
)

// unsays waits until no sentence of the status has a word.
func (r *testbed) unsays(word string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("the status does not say %q any more", word), func() error {
		s, err := r.status()
		if said := slices.Concat(s.Warnings, s.NotReady); err == nil &&
			strings.Contains(strings.Join(said, "; "), word) {
			err = fmt.Errorf("it says %q", said)
		}
		return err
	})
}

// TestEachMistakeInCalicosObjectsIsSaid makes mistakes one after another. Each is told with the
// command that shows it, and what it does not concern goes on.
func TestEachMistakeInCalicosObjectsIsSaid(t *testing.T) {
	beside(t, long)
	const filter, peer = "bgpfilter/sallyport", "bgppeer/sallyport-192-168-50-21"
	two := []string{"172.16.49.64/26 via 192.168.50.22", "172.16.171.64/26 via 192.168.50.23"}
	r := newTestbed(t, world.Options{Name: "mistakes", Workers: 1}, settings{})
	r.must(r.ClaimBlocks(t.Context(), world.Master))
	r.apply(application("app", 2) + ingress("app", "", "test.local / Prefix app"))
	r.start()
	r.ready()
	r.routed(two)
	r.eventually("without a mistake the status warns of nothing", func() error {
		s, err := r.status()
		if err == nil && len(s.Warnings) > 0 {
			err = fmt.Errorf("it warns %q", s.Warnings)
		}
		return err
	})
	patch := func(r *testbed, object, spec string) {
		r.t.Helper()
		r.kubectl("patch", object, "--type=merge", "-p", `{"spec":`+spec+`}`)
	}

	r.sub("BGPConfiguration is deleted", func(_ *testing.T, r *testbed) {
		before := r.kubectl("get", "bgpconfiguration", "default", "-o", "yaml")
		r.kubectl("delete", "bgpconfiguration", "default")
		r.says("BGPConfiguration", "does not exist", "AS 64512", "expects AS 65000",
			"kubectl get bgpconfigurations.crd.projectcalico.org -o yaml")
		r.established("default", 2) // in AS 64512
		r.routed(two)
		r.apply(before)
		r.unsays("BGPConfiguration")
		r.established("default", 2)
		r.routed(two)
	})
	r.sub("one node has an AS of its own", func(t *testing.T, r *testbed) {
		r.kubectl("annotate", "node", "worker1", "projectcalico.org/ASNumber=65001")
		r.eventually("worker1 speaks in AS 65001", func() error {
			s, err := r.status()
			for _, p := range s.Peers {
				if err == nil && p.Node == "worker1" && (p.ASN != 65001 || p.State != "Established") {
					err = fmt.Errorf("it is %+v", p)
				}
			}
			return err
		})
		r.routed(two)
		r.answeredBy("http://test.local/", 2)
		r.kubectl("annotate", "--overwrite", "node", "worker1", "projectcalico.org/ASNumber=many")
		r.says("worker1", "projectcalico.org/ASNumber", `"many"`, "not an AS number")
		r.kubectl("annotate", "node", "worker1", "projectcalico.org/ASNumber-")
		r.unsays("ASNumber")
		r.routed(two)
	})
	r.sub("a BGPPeer for worker1 expects us in another AS", func(_ *testing.T, r *testbed) {
		r.kubectl("label", "node", "worker1", "strict=")
		patch(r, peer, `{"nodeSelector":"!has(strict)"}`)
		r.apply(`
apiVersion: crd.projectcalico.org/v1
kind: BGPPeer
metadata: {name: wrong}
spec: {peerIP: 192.168.50.21, asNumber: 65009, nodeSelector: has(strict), filters: [sallyport, sallyport-own]}
`)
		r.says(`BGPPeer "wrong"`, "spec.asNumber is 65009", "appliance is in AS 65000",
			"kubectl get bgppeers.crd.projectcalico.org -o yaml")
		r.routed(two[:1])
		r.kubectl("delete", "bgppeer", "wrong")
		patch(r, peer, `{"nodeSelector":null}`)
		r.unsays("65009")
		r.routed(two)
	})
	r.sub("the filter lets nodes learn", func(t *testing.T, r *testbed) {
		patch(r, filter, `{"importV4":[{"action":"Reject","matchOperator":"In","cidr":"10.0.0.0/8"}]}`)
		r.says("BGPPeer", "nodes would learn whatever the address of the appliance announces",
			"kubectl get bgpfilters.crd.projectcalico.org -o yaml")
		r.kubectl("delete", filter)
		r.says("BGPPeer", `BGPFilter "sallyport" of spec.filters does not exist`)
		r.routed(two)
		manifests, err := r.Manifests(t.Context())
		r.must(err)
		r.apply(manifests)
		r.unsays("BGPPeer")
	})
	r.sub("the filter lets nodes announce nothing", func(_ *testing.T, r *testbed) {
		patch(r, filter, `{"exportV4":[{"action":"Reject"}]}`)
		r.says("BGPPeer", "reject all that the nodes announce to the appliance",
			"kubectl get bgpfilters.crd.projectcalico.org -o yaml")
		patch(r, filter, `{"exportV4":[{"action":"Reject","matchOperator":"In","cidr":"172.16.171.0/24"}]}`)
		r.says("node worker1 (192.168.50.23) has announced none of its blocks (1)",
			"bgpfilters.crd.projectcalico.org -o yaml")
		r.routed(two[:1])
		patch(r, filter, `{"exportV4":null}`)
		r.unsays("worker1")
		r.routed(two)
	})
	r.sub("the appliance may not read filters", func(_ *testing.T, r *testbed) {
		manifests, err := r.Manifests(r.t.Context())
		r.must(err)
		r.apply(strings.ReplaceAll(manifests, `"bgpfilters"`, `"nothing"`))
		r.end(15)
		r.start()
		r.ready()
		r.says("bgpfilters", "may not list and watch")
		r.says("bgpfilters", "unknown whether the nodes would learn")
		r.routed(two)
		r.apply(manifests)
		r.unsays("bgpfilters")
	})
	r.sub("Calico is upgraded to objects in another group", func(t *testing.T, r *testbed) {
		r.upgradeCalico("BlockAffinity", "IPAMBlock", "IPPool", "BGPConfiguration", "BGPPeer", "BGPFilter",
			"ClusterInformation")
		r.says("marks both as ready", "crd.projectcalico.org/v1 are read", "kubectl get clusterinformations")
		patch(r, "clusterinformations.crd.projectcalico.org/default", `{"datastoreReady":false}`)
		r.eventually("the objects of the new group are read", func() error {
			s, err := r.status()
			if err == nil && s.Clusters[0].APIGroup != "projectcalico.org/v3" {
				err = fmt.Errorf("%+v and %q", s.Clusters[0], s.Warnings)
			}
			return err
		})
		r.routed(two)
		r.answeredBy("http://test.local/", 2)
		r.unsays("Calico")
		r.kubectl("delete", "bgpconfiguration.v3.projectcalico.org", "default")
		r.says("does not exist", "kubectl get bgpconfigurations.projectcalico.org -o yaml")
	})
}

// upgradeCalico defines kinds of Calico's in projectcalico.org/v3 as well, and copies their objects
// there.
func (r *testbed) upgradeCalico(kinds ...string) {
	r.t.Helper()
	for _, kind := range kinds {
		singular := strings.ToLower(kind)
		plural := strings.TrimSuffix(singular, "y") + map[bool]string{
			true:  "ies",
			false: "s",
		}[strings.HasSuffix(singular, "y")]
		r.apply(fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.projectcalico.org, annotations: {api-approved.kubernetes.io: unapproved}}
spec:
  group: projectcalico.org
  scope: Cluster
  names: {kind: %[3]s, listKind: %[3]sList, plural: %[1]s, singular: %[2]s}
  versions:
  - {name: v3, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, plural, singular, kind))
		r.kubectl("wait", "--for=condition=Established", "crd/"+plural+".projectcalico.org", "--timeout=60s")
		var list struct{ Items []map[string]any }
		r.must(json.Unmarshal([]byte(r.kubectl("get", plural+".crd.projectcalico.org", "-o", "json")), &list))
		for _, object := range list.Items {
			object["apiVersion"] = "projectcalico.org/v3"
			object["metadata"] = map[string]any{"name": object["metadata"].(map[string]any)["name"]}
			text, err := json.Marshal(object)
			r.must(err)
			r.apply(string(text))
		}
	}
}
