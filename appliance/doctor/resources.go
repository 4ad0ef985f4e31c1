package doctor

import (
	"context"
	"fmt"
	"strings"

	"sallyport/appliance/config"
	"sallyport/appliance/status"
	"sallyport/ingress/watch"
)

// customResources tells that a cluster has custom resources of HAProxy's own controller, and that its
// configuration does not read them. An object that names one has a problem of its own. No object names a TCP, so
// nothing else tells that its ports are closed.
func (d *doctor) customResources(ctx context.Context, c config.Cluster, w *watch.Watcher) {
	if c.Ingress.CustomResources {
		return
	}
	groups, err := w.CustomGroups(ctx)
	if err != nil || len(groups) == 0 { // Health tells that an API server does not answer
		return
	}
	d.finds(status.Info, "rights and objects", fmt.Sprintf("cluster %s serves the custom resources of HAProxy's own "+
		"controller (%s), and none of them is read", c.Name, strings.Join(groups, ", ")),
		"if some are in use, set clusters[].ingress.customResources: true, and apply the manifests again",
		d.manifests())
}
