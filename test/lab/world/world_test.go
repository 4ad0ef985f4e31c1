package world_test

import (
	"os"
	"testing"

	"sallyport/test/lab/world"
)

func TestUp(t *testing.T) {
	l, err := world.Up(t.Context(), world.Options{Name: "t1", Workers: 2, Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	out, _ := l.Kubectl(t.Context(), "get", "nodes,blockaffinities,bgppeers", "-o", "wide").CombinedOutput()
	t.Logf("%s", out)
	o, err := l.BIRD(t.Context(), "worker1", 4, "show", "protocols")
	t.Log(o, err)
	if err := l.Down(); err != nil {
		t.Fatal(err)
	}
}
