package ingress

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/haproxy"
)

// stream gives the ports that ConfigMaps of TCP services name to backends of
// their own. Of several clusters that name one port the first configured has it.
func (k *clerk) stream() {
	owner := make(map[uint16]string)
	for i, w := range k.worlds {
		on := w.refer(w.options.TCPServices)
		for _, s := range w.streams {
			p := &petition{world: i, on: &on, object: &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: s.To.Service.Namespace}}, claims: &claims{}}
			if whose := cmp.Or(k.Taken[s.Port], owner[s.Port]); whose != "" {
				k.complain(p, "PortConflict", "key %d: the port is that of %s; it is not served", s.Port, whose)
				continue
			}
			free := haproxy.FreePort(s.Port)
			k.questions = append(k.questions, free)
			switch verdict := k.verdicts[free.Part()]; {
			case verdict.Why != "":
				k.complain(p, "PortConflict", "key %d: on the appliance the port is %s; it is not served: free it, then take the line away and write it again", s.Port, verdict.Why)
				continue
			case !verdict.Known:
				continue
			}
			to := reference{service: s.To.Service.Name, port: s.To.Port, kind: streams}
			if number, err := strconv.ParseInt(s.To.Port, 10, 32); err == nil {
				to.port, to.number = "", int32(number)
			}
			n, why := k.backend(p, to)
			if why.Reason != "" {
				k.complain(p, why.Reason, "key %d: %s; until that is mended the port is closed", s.Port, why.Why)
				continue
			}
			n.name = shorten(fmt.Sprintf("%s.tcp-%d", n.name, s.Port), ".")
			if s.SendProxy != "" {
				own := *n.settings
				own.Options.SendProxy = s.SendProxy
				n.settings = &own
			}
			owner[s.Port], k.needed[n.name] = "a TCP service of cluster "+w.cluster, n
			k.routing.streams = append(k.routing.streams, haproxy.Stream{Port: s.Port, Backend: n.name, TLS: s.TLS, Proxy: s.Proxy})
		}
	}
	slices.SortFunc(k.routing.streams, func(a, b haproxy.Stream) int { return cmp.Compare(a.Port, b.Port) })
}
