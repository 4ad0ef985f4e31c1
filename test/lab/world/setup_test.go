package world

import (
	"slices"
	"strings"
	"testing"
)

func TestEveryPackageNamesTheProgramsThatShowIt(t *testing.T) {
	list := packages()
	for name, programs := range list {
		if len(programs) == 0 {
			t.Errorf("package %s names no program", name)
		}
	}
	for _, want := range []string{"haproxy", "curl", "iproute2"} {
		if _, ok := list[want]; !ok {
			t.Errorf("want package %s in the list, got %v", want, list)
		}
	}
}

func TestTheDefinitionsAreCalicos(t *testing.T) {
	objects, err := calicoDefinitions()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range objects {
		plural, group, _ := strings.Cut(o.GetName(), ".")
		if want := "crd.projectcalico.org"; o.GetKind() != "CustomResourceDefinition" || group != want {
			t.Errorf("%s: want a definition in %s", o.GetName(), want)
		}
		got = append(got, plural)
	}
	for _, want := range []string{
		"blockaffinities", "ipamblocks", "ippools", "bgpconfigurations", "bgppeers", "bgpfilters",
		"clusterinformations",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("want %s to be defined, got %v", want, got)
		}
	}
}
