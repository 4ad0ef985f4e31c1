package watch

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestTheDataOfOneConfigMapIsRead asks for one that is there, one that is not, and one that nobody may read.
func TestTheDataOfOneConfigMapIsRead(t *testing.T) {
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		const list = `{"kind": "ConfigMapList", "apiVersion": "v1", "items": [%s]}`
		switch asked := r.URL.Path + " " + r.URL.Query().Get("fieldSelector"); asked {
		case "/api/v1/namespaces/web/configmaps metadata.name=conf":
			_, _ = fmt.Fprintf(w, list, `{"metadata": {"namespace": "web", "name": "conf"}, "data": {"hsts": "true"}}`)
		case "/api/v1/namespaces/web/configmaps metadata.name=gone":
			_, _ = fmt.Fprintf(w, list, "")
		default:
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", `+
				`"message": "no", "code": 403}`)
		}
	}))
	t.Cleanup(api.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	kubeconfig := fmt.Appendf(nil, "{current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], users: "+
		"[{name: u, user: {token: x}}], clusters: [{name: c, cluster: {server: '%s', certificate-authority-data: %s}}]}",
		api.URL, base64.StdEncoding.EncodeToString(authority))
	if got, err := DataOf(t.Context(), kubeconfig, "web/conf"); err != nil ||
		!maps.Equal(got, map[string]string{"hsts": "true"}) {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := DataOf(t.Context(), kubeconfig, "web/gone"); err != nil || got != nil {
		t.Errorf("one that is not there: %v, %v", got, err)
	}
	if got, err := DataOf(t.Context(), kubeconfig, "secret/conf"); err == nil {
		t.Errorf("one that nobody may read: %v", got)
	}
	if _, err := DataOf(t.Context(), nil, "web/conf"); err == nil {
		t.Error("an empty kubeconfig is no error")
	}
}
