package appliance

import (
	"strings"
	"testing"
	"time"
)

func TestLagsAreObservedOnceForEachChange(t *testing.T) {
	s := newScene(t)
	h, _ := endpoint(s)
	s.speaker.state = established
	s.speaker.announce(block1, node1)
	s.speaker.announce(block2, node2)
	for i := range s.speaker.offers {
		s.speaker.offers[i].Announced = s.clock.Add(-time.Second)
	}
	s.settle(t)
	count := func(want ...string) {
		t.Helper()
		_, text := ask(t, h, "/metrics")
		for _, line := range want {
			if !strings.Contains(text, line+"\n") {
				t.Errorf("no line %s", line)
			}
		}
	}
	count("sallyport_route_add_duration_seconds_count 2", "sallyport_route_add_duration_seconds_sum 2",
		"sallyport_server_open_duration_seconds_count 2")

	// Somebody deletes the routes: they come back for the announcements of before.
	clear(s.kernel.routes)
	s.settle(t)
	count("sallyport_route_add_duration_seconds_count 2")

	// A node announces its block again.
	offer := s.speaker.offers[0]
	s.speaker.offers = s.speaker.offers[1:]
	s.pass(t, time.Second)
	offer.Announced = s.clock
	s.speaker.offers = append(s.speaker.offers, offer)
	s.settle(t)
	count("sallyport_route_add_duration_seconds_count 3")
}
