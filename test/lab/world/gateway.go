package world

import (
	"context"
	"io"
)

// GatewaySuite returns the folder with the conformance suite of Gateway API (the program suite), its
// echo server (the program echo-basic) and the CRDs of its standard channel (crd). It compiles them
// if the cache does not have them.
func GatewaySuite(ctx context.Context, progress io.Writer) (string, error) {
	m := module{
		folder: "gateway/suite", title: "the suite of Gateway API", takes: "about 5 minutes on 2 cores",
		tests: true, tools: []string{"sigs.k8s.io/gateway-api/conformance/echo-basic"},
		source: "sigs.k8s.io/gateway-api", copies: [][2]string{{"config/crd/standard", "crd"}},
	}
	return m.fetch(ctx, progress)
}
