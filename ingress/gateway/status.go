package gateway

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// A Status is the part of an object's status that is ours to write. One of the last five fields is
// set, by the Kind. Conditions have the object's generation, and no LastTransitionTime. The writer
// keeps the time of a condition that has the same Status already.
type Status struct {
	Kind            string // as GatewayClass, Gateway, ListenerSet, HTTPRoute or BackendTLSPolicy
	Namespace, Name string
	UID             string
	Generation      int64
	Parent          string // UID of the Gateway of a ListenerSet

	Class     *gatewayv1.GatewayClassStatus
	Gateway   *gatewayv1.GatewayStatus
	Listeners *gatewayv1.ListenerSetStatus
	Parents   []gatewayv1.RouteParentStatus    // of a route; entries of other controllers stay as they are
	Unmet     bool                             // of a route: some condition says that it is not served as it asks
	Ancestors []gatewayv1.PolicyAncestorStatus // of a policy; entries of other controllers stay as they are
}

// statusOf returns the Status of an object, without content.
func statusOf(kind string, o metav1.Object) Status {
	return Status{
		Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: string(o.GetUID()),
		Generation: o.GetGeneration(),
	}
}

// A Refusal says why a thing is not served: by a reason of the API, and in a sentence.
type Refusal struct{ Reason, Why string }

// conditions collects the conditions of one object.
type conditions struct {
	generation int64
	all        []metav1.Condition
}

func (c *conditions) add(kind string, is bool, reason, why string) {
	status := metav1.ConditionFalse
	if is {
		status = metav1.ConditionTrue
	}
	c.all = append(c.all, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: short(why), ObservedGeneration: c.generation,
	})
}

// hold adds a condition that is true unless there is a refusal.
func (c *conditions) hold(kind, reason string, refused *Refusal) {
	if refused != nil {
		c.add(kind, false, refused.Reason, refused.Why)
		return
	}
	c.add(kind, true, reason, "")
}

// longest bounds the message of a condition, in bytes. The API allows 32 kB.
const longest = 1024

func short(why string) string {
	if len(why) <= longest {
		return why
	}
	cut := longest
	for cut > 0 && why[cut]&0xC0 == 0x80 { // not within a character
		cut--
	}
	return why[:cut] + "…"
}
