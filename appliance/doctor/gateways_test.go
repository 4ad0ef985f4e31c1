package doctor

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/appliance/config"
	"sallyport/appliance/status"
	"sallyport/ingress"
	"sallyport/ingress/input"
	"sallyport/ingress/watch"
)

func TestCRDsOfAnotherBundleAreAFault(t *testing.T) {
	if got := kindFaults(watch.GatewayKinds{All: []string{"Gateway", "TLSRoute"}}); len(got) > 0 {
		t.Errorf("got %q", got)
	}
	got := kindFaults(watch.GatewayKinds{
		All: []string{"Gateway", "TLSRoute"}, Missing: []string{"TLSRoute"}, Experimental: true,
	})
	if len(got) != 2 || !strings.HasPrefix(got[0], "TLSRoute of Gateway API cannot be served") ||
		!strings.Contains(got[1], "experimental channel") {
		t.Errorf("got %q", got)
	}
}

// TestGatewaysOfOthersAreNoFault has the objects of another controller. The configuration file does not ask
// for Gateways.
func TestGatewaysOfOthersAreNoFault(t *testing.T) {
	const ours = "sallyport.dev/gateway"
	for name, row := range map[string]struct {
		controller, class string
		want              bool
	}{
		"those of others alone":       {"example.com/other", "web", false},
		"a class of ours":             {ours, "web", true},
		"a Gateway that names ours":   {"example.com/other", "sallyport", true},
		"neither a class nor Gateway": {"", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := input.Snapshot{}
			if row.class != "" {
				s.API.Classes = []*gatewayv1.GatewayClass{{
					Spec: gatewayv1.GatewayClassSpec{ControllerName: gatewayv1.GatewayController(row.controller)},
				}}
				s.API.Gateways = []*gatewayv1.Gateway{{
					Spec: gatewayv1.GatewaySpec{GatewayClassName: gatewayv1.ObjectName(row.class)},
				}}
			}
			if got := concerned(config.Cluster{Gateway: config.Gateway{Controller: ours}}, s); got != row.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestAClassOfAnotherControllerIsAFault(t *testing.T) {
	const ours = "sallyport.dev/gateway"
	class := func(name, controller string) *gatewayv1.GatewayClass {
		return &gatewayv1.GatewayClass{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       gatewayv1.GatewayClassSpec{ControllerName: gatewayv1.GatewayController(controller)},
		}
	}
	for name, row := range map[string]struct {
		classes []*gatewayv1.GatewayClass
		want    []string // a part of each sentence
	}{
		"ours": {[]*gatewayv1.GatewayClass{class("sallyport", ours), class("web", "example.com/other")}, nil},
		"ours under another name": {
			[]*gatewayv1.GatewayClass{class("web", ours)}, nil,
		},
		"none": {nil, []string{
			"no GatewayClass has controllerName sallyport.dev/gateway", "1 Gateway of a GatewayClass that does not exist: shop/web (web)",
		}},
		"claimed": {
			[]*gatewayv1.GatewayClass{class("sallyport", "example.com/other"), class("web", "example.com/other")},
			[]string{"no GatewayClass has controllerName", "GatewayClass sallyport belongs to the controller example.com/other"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := input.Snapshot{}
			s.API.Classes = row.classes
			s.API.Gateways = []*gatewayv1.Gateway{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: gatewayv1.GatewaySpec{GatewayClassName: "web"},
			}}
			got := classFaults(config.Cluster{Name: "lab", Gateway: config.Gateway{Controller: ours}}, s)
			if len(got) != len(row.want) {
				t.Fatalf("got %q, want %q", got, row.want)
			}
			for i, want := range row.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("got %q, want %q", got[i], want)
				}
			}
		})
	}
}

func TestAClosedListenerIsToldOnce(t *testing.T) {
	const why = "198.51.100.1 is in none of the pools of the appliance (group.pools)"
	for name, row := range map[string]struct {
		reason   string
		problems []status.ProblemStatus
		want     status.Code
	}{
		"its Gateway has the problem": {
			"AddressNotUsable", []status.ProblemStatus{{Cluster: "lab", Object: "Gateway shop/web", Why: why}}, "objects",
		},
		"HAProxy does not have it yet": {"Pending", nil, status.ClosedListeners},
	} {
		t.Run(name, func(t *testing.T) {
			var got []status.Code
			d := doctor{
				reporter: reporter{report: func(f status.Finding) { got = append(got, f.Code) }},
				status: &status.Status{
					Problems: row.problems,
					Findings: []status.Finding{{Code: status.ClosedListeners, Subject: "lab", Level: status.Doubt}},
					Gateways: []ingress.GatewayReport{{
						ObjectRef: input.ObjectRef{Cluster: "lab", Kind: "Gateway", Namespace: "shop", Name: "web"},
						Listeners: []ingress.ListenerReport{{Name: "http", Reason: row.reason}},
					}},
				},
			}
			d.objects()
			d.running()
			got = slices.DeleteFunc(got, func(c status.Code) bool { return c != "objects" && c != status.ClosedListeners })
			if len(got) != 1 || got[0] != row.want {
				t.Errorf("got %q, want %q alone", got, row.want)
			}
		})
	}
}
