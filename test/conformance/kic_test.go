package main

import (
	"strings"
	"testing"
)

// TestEachFactOfHAProxysControllerIsFounded holds each fact to its source.
func TestEachFactOfHAProxysControllerIsFounded(t *testing.T) {
	for _, c := range kicCases() {
		for _, f := range c.facts {
			folder, file, _ := strings.Cut(f.from, "/")
			if kicSources[folder+"/"] == "" || file == "" {
				t.Errorf("%s: %s: %q is no source", c.name, f.name, f.from)
			}
			if f.there != "" || len(f.want) == 0 {
				t.Errorf("%s: %s: it wants nothing, or states what it does not do", c.name, f.name)
			}
		}
	}
}
