package doctor

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sallyport/appliance/config"
	"sallyport/appliance/status"
	"sallyport/ingress/watch"
)

func TestCustomResourcesThatNobodyReadsAreTold(t *testing.T) {
	const v1, v3 = "/apis/ingress.v1.haproxy.org/v1", "/apis/ingress.v3.haproxy.org/v3"
	for name, row := range map[string]struct {
		served string
		read   bool
		want   string
	}{
		"no group":                       {},
		"both groups":                    {served: v1 + v3, want: "(ingress.v3.haproxy.org, ingress.v1.haproxy.org)"},
		"the newer group":                {served: v3, want: "(ingress.v3.haproxy.org)"},
		"the newer group, which is read": {served: v3, read: true},
		"an API server with a fault":     {served: "fault"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case row.served == "fault":
					http.Error(w, "fault", http.StatusInternalServerError)
				case !strings.Contains(row.served, r.URL.Path):
					http.NotFound(w, r)
				default:
					fmt.Fprint(w, `{"kind": "APIResourceList", "resources": [{"name": "tcps"}]}`)
				}
			}))
			t.Cleanup(server.Close)
			w, err := watch.New(watch.Config{Kubeconfig: fmt.Appendf(nil, "{apiVersion: v1, kind: Config, clusters: "+
				"[{name: a, cluster: {server: %q}}], contexts: [{name: a, context: {cluster: a, user: a}}], users: "+
				"[{name: a, user: {token: a}}], current-context: a}", server.URL)})
			if err != nil {
				t.Fatal(err)
			}
			var got []status.Finding
			d := doctor{reporter: reporter{report: func(f status.Finding) { got = append(got, f) }}, path: "FILE"}
			d.customResources(t.Context(), config.Cluster{Ingress: config.Ingress{CustomResources: row.read}}, w)
			if row.want == "" && len(got) > 0 || row.want != "" && (len(got) != 1 || got[0].Level != status.Info ||
				!strings.Contains(got[0].Saw, row.want) || !strings.Contains(got[0].Command, "FILE")) {
				t.Errorf("got %+v, want %q", got, row.want)
			}
		})
	}
}
