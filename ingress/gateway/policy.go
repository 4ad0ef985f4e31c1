package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// A Policy is a BackendTLSPolicy: HAProxy connects to the servers of its Services over TLS.
type Policy struct {
	Object *gatewayv1.BackendTLSPolicy

	Authorities []types.NamespacedName // ConfigMaps with their certificates
	Hostname    string                 // SNI, and the name that the servers' certificates have to have

	refused    *Refusal // its backends are closed
	unresolved *Refusal
	conflict   *Refusal // an older policy has one of its targets
	ancestors  []*Gateway
}

// Closed returns why the backends of the policy take no requests. It returns "" if they take requests.
func (p *Policy) Closed() string {
	if p.refused == nil {
		return ""
	}
	return p.refused.Why
}

// Refuse says that the backends of the policy take no requests.
func (p *Policy) Refuse(why string) {
	p.refused = cmp.Or(p.refused, &Refusal{string(gatewayv1.PolicyReasonInvalid), why})
}

// readPolicies reads the policies, the older first.
func (a *Attachment) readPolicies() {
	type target struct{ namespace, service, port string }
	owners := make(map[target]*Policy)
	a.policies = make(map[types.NamespacedName][]*Policy)
	for _, object := range byAge(a.world.TLSPolicies) {
		if !a.world.Admits(object.Namespace) {
			continue
		}
		p := a.policy(object)
		a.Policies = append(a.Policies, p)
		for _, ref := range object.Spec.TargetRefs {
			if ref.Group != "" || ref.Kind != "Service" {
				continue
			}
			service := types.NamespacedName{Namespace: object.Namespace, Name: string(ref.Name)}
			if !slices.Contains(a.policies[service], p) {
				a.policies[service] = append(a.policies[service], p)
			}
			at := target{object.Namespace, string(ref.Name), string(value(ref.SectionName, ""))}
			if first := owners[at]; first != nil && first != p {
				p.conflict = cmp.Or(p.conflict, &Refusal{string(gatewayv1.PolicyReasonConflicted), fmt.Sprintf(
					"BackendTLSPolicy %s is older, and has the same target: Service %s", keyOf(first.Object),
					ref.Name)})
				continue
			}
			owners[at] = p
		}
	}
}

func (a *Attachment) policy(object *gatewayv1.BackendTLSPolicy) *Policy {
	p := &Policy{Object: object}
	v := object.Spec.Validation
	invalid := func(format string, args ...any) {
		p.refused = cmp.Or(p.refused, &Refusal{string(gatewayv1.PolicyReasonInvalid), fmt.Sprintf(format, args...)})
	}
	var clean bool
	if p.Hostname, clean = cleanHostname(string(v.Hostname)); !clean || wildness(p.Hostname) > 0 {
		invalid("validation.hostname %s is not a DNS name", quote(string(v.Hostname)))
	}
	for _, name := range v.SubjectAltNames {
		if name.Type != gatewayv1.HostnameSubjectAltNameType ||
			!strings.EqualFold(string(name.Hostname), p.Hostname) {
			invalid("validation.subjectAltNames has another name than validation.hostname, and HAProxy " +
				"compares a server's certificate with one name alone")
		}
	}
	if v.WellKnownCACertificates != nil {
		invalid("validation.wellKnownCACertificates is not supported; name authorities in caCertificateRefs")
	}
	for _, ref := range v.CACertificateRefs {
		key := types.NamespacedName{Namespace: object.Namespace, Name: string(ref.Name)}
		if ref.Group != "" || ref.Kind != "ConfigMap" {
			p.unresolved = cmp.Or(p.unresolved, &Refusal{
				string(gatewayv1.BackendTLSPolicyReasonInvalidKind), fmt.Sprintf(
					"validation.caCertificateRefs has a %s; allowed are ConfigMaps", quote(string(ref.Kind))),
			})
			continue
		}
		if why := a.world.Authorities(key); why != nil {
			p.unresolved = cmp.Or(p.unresolved, &Refusal{
				string(gatewayv1.BackendTLSPolicyReasonInvalidCACertificateRef), why.Why,
			})
			continue
		}
		p.Authorities = append(p.Authorities, key)
	}
	if len(p.Authorities) == 0 {
		why := "validation names no authorities"
		if p.unresolved != nil {
			why = p.unresolved.Why
		}
		p.refused = cmp.Or(p.refused,
			&Refusal{string(gatewayv1.BackendTLSPolicyReasonNoValidCACertificate), why})
	}
	return p
}

// PoliciesOf returns the policies that name a port of a Service, or the whole Service. name is the name
// of the port. The first one counts: one that names the port overrides one that does not, and then the
// older one counts.
func (a *Attachment) PoliciesOf(service types.NamespacedName, name string) (found []*Policy) {
	for _, whole := range []bool{false, true} {
		for _, p := range a.policies[service] {
			if p.targets(service.Name, name, whole) && !slices.Contains(found, p) {
				found = append(found, p)
			}
		}
	}
	return found
}

// targets reports whether a policy names a port of a Service, or the whole Service.
func (p *Policy) targets(service, port string, whole bool) bool {
	return slices.ContainsFunc(p.Object.Spec.TargetRefs,
		func(ref gatewayv1.LocalPolicyTargetReferenceWithSectionName) bool {
			if ref.Group != "" || ref.Kind != "Service" || string(ref.Name) != service {
				return false
			}
			if whole {
				return ref.SectionName == nil
			}
			return ref.SectionName != nil && string(*ref.SectionName) == port && port != ""
		})
}

// Serve says that a Gateway leads to a Service of the policy.
func (p *Policy) Serve(g *Gateway) {
	if !slices.Contains(p.ancestors, g) {
		p.ancestors = append(p.ancestors, g)
	}
}

// mostAncestors is how many Gateways the status of a policy can name.
const mostAncestors = 16

func (p *Policy) status(controller string) Status {
	s := statusOf("BackendTLSPolicy", p.Object)
	slices.SortFunc(p.ancestors, func(a, b *Gateway) int { return olderObject(a.Object, b.Object) })
	for _, g := range p.ancestors[:min(len(p.ancestors), mostAncestors)] {
		said := conditions{generation: p.Object.Generation}
		said.hold(string(gatewayv1.PolicyConditionAccepted), string(gatewayv1.PolicyReasonAccepted),
			cmp.Or(p.conflict, p.refused))
		said.hold(string(gatewayv1.BackendTLSPolicyConditionResolvedRefs),
			string(gatewayv1.BackendTLSPolicyReasonResolvedRefs), p.unresolved)
		group, kind, namespace := gatewayv1.Group(gatewayv1.GroupName), gatewayv1.Kind("Gateway"),
			gatewayv1.Namespace(g.Object.Namespace)
		s.Ancestors = append(s.Ancestors, gatewayv1.PolicyAncestorStatus{
			AncestorRef: gatewayv1.ParentReference{
				Group: &group, Kind: &kind, Namespace: &namespace, Name: gatewayv1.ObjectName(g.Object.Name),
			},
			ControllerName: gatewayv1.GatewayController(controller), Conditions: said.all,
		})
	}
	return s
}
