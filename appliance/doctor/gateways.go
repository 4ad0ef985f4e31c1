package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sallyport/appliance/config"
	"sallyport/appliance/status"
	"sallyport/ingress/input"
	"sallyport/ingress/watch"
)

// ourClass is the name of the GatewayClass in the manifests.
const ourClass = "sallyport"

// gatewayFaults returns which kinds of Gateway API a cluster lacks, and the faults of its GatewayClasses,
// in sentences. It returns none if nobody asked for Gateways, neither the configuration file nor an object.
// Problems of Gateways and routes are among those of all objects.
func gatewayFaults(ctx context.Context, c config.Cluster, w *watch.Watcher, s input.Snapshot) (all []string) {
	if !c.Gateway.Looks() || !c.Gateway.Asked() && !concerned(c, s) {
		return nil
	}
	switch of, err := w.GatewayKinds(ctx); {
	case err != nil:
		return []string{fmt.Sprintf("the kinds of Gateway API cannot be listed: %v", err)}
	case len(of.Missing) == len(of.All):
		return nil // Health says so
	default:
		return append(kindFaults(of), classFaults(c, s)...)
	}
}

// concerned reports whether a GatewayClass is ours, or a Gateway names the one of the manifests.
func concerned(c config.Cluster, s input.Snapshot) bool {
	for _, class := range s.API.Classes {
		if string(class.Spec.ControllerName) == c.Gateway.Controller {
			return true
		}
	}
	for _, g := range s.API.Gateways {
		if g.Spec.GatewayClassName == ourClass {
			return true
		}
	}
	return false
}

// kindFaults returns the faults of the CRDs of Gateway API.
func kindFaults(of watch.GatewayKinds) (all []string) {
	if len(of.Missing) > 0 {
		all = append(all, fmt.Sprintf("%s of Gateway API cannot be served: the CRDs are older than v1.6, or some are "+
			"missing; install those of the standard channel, v1.6", strings.Join(of.Missing, ", ")))
	}
	if of.Experimental {
		all = append(all, "the CRDs of Gateway API are those of the experimental channel: fields beyond the standard "+
			"channel may be answered with status 500, or ignored (`sallyport status problems`)")
	}
	return all
}

// classFaults returns the faults of the GatewayClasses of a cluster, in sentences.
func classFaults(c config.Cluster, s input.Snapshot) (all []string) {
	owner := make(map[string]string)
	ours := false
	for _, class := range s.API.Classes {
		owner[class.Name] = string(class.Spec.ControllerName)
		ours = ours || owner[class.Name] == c.Gateway.Controller
	}
	if !ours {
		all = append(all, fmt.Sprintf("no GatewayClass has controllerName %s, so no Gateway is served",
			c.Gateway.Controller))
	}
	if other, is := owner[ourClass]; is && other != c.Gateway.Controller {
		all = append(all, fmt.Sprintf("GatewayClass sallyport belongs to the controller %s, and not to %s "+
			"(clusters[].gateway.controller)", other, c.Gateway.Controller))
	}
	var without []string
	for _, g := range s.API.Gateways {
		if class := string(g.Spec.GatewayClassName); owner[class] == "" {
			without = append(without, fmt.Sprintf("%s/%s (%s)", g.Namespace, g.Name, class))
		}
	}
	if slices.Sort(without); len(without) > 0 {
		all = append(all, fmt.Sprintf("%s of a GatewayClass that does not exist: %s",
			status.Counted(len(without), "Gateway"), few(without)))
	}
	return all
}

// objectsTell reports whether the problems of objects say why listeners of a cluster are not served. No
// object has the problem of a listener that HAProxy lacks.
func objectsTell(s *status.Status, cluster string) bool {
	closed := slices.DeleteFunc(status.ListenerRows(s.Gateways), func(r status.ListenerRow) bool {
		return r.Gateway.Cluster != cluster || r.Listener.Programmed
	})
	return len(closed) > 0 && !slices.ContainsFunc(closed, func(r status.ListenerRow) bool {
		return r.Listener.Reason == pending
	})
}
