package watch

import (
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// TestClientsOfManyClustersAtOnce makes clients side by side, as an appliance does that
// has several clusters. The race detector looks on.
func TestClientsOfManyClustersAtOnce(t *testing.T) {
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if _, err := newClients(&rest.Config{Host: "https://127.0.0.1:1"}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}
