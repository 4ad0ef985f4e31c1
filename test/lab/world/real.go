package world

import (
	"context"
	"io"
)

// RealCalico returns a folder with Calico itself, and compiles it if the cache does not have it:
//
//	calico       the program with all parts (test/lab/calico); calico-ipam is the same
//	confd        the configuration of confd, with the templates of BIRD's configuration
//	calico.yaml  the manifest with CRDs and RBAC
//
// All of it is Calico's own, except for one line in the template of IPv4: the filter of the
// kernel's routes sets krt_tunnel, which only Calico's fork of BIRD knows. For Debian's BIRD the
// filter declares it as a variable. No neighbour hears the difference. IPIP between nodes is lost.
func RealCalico(ctx context.Context, progress io.Writer) (string, error) {
	const filter = "filter calico_kernel_programming "
	m := module{
		folder: "calico", title: "Calico", takes: "about 6 minutes on 2 cores",
		source: "github.com/projectcalico/calico",
		copies: [][2]string{{"confd/etc/calico/confd", "confd"}, {"manifests/calico.yaml", "calico.yaml"}},
		edits:  []edit{{"confd/templates/bird_ipam.cfg.template", filter + "{", filter + "string krt_tunnel; {"}},
		links:  []string{"calico-ipam"},
	}
	return m.fetch(ctx, progress)
}
