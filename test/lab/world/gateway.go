package world

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
)

// gatewayModule is the Go module with the types of Gateway API and the CRDs of their kinds.
const gatewayModule, gatewayCRDs = "sigs.k8s.io/gateway-api", "config/crd"

// A Channel is a release channel of the CRDs of Gateway API. The empty Channel has none of them.
type Channel string

// The channels. Experimental has all fields and kinds of Standard, and more fields.
const (
	Standard     Channel = "standard"
	Experimental Channel = "experimental"
)

// GatewaySuite returns the folder with the conformance suite of Gateway API (the program suite) and
// its echo server (the program echo-basic). It compiles them if the cache does not have them.
func GatewaySuite(ctx context.Context, progress io.Writer) (string, error) {
	m := module{
		folder: "gateway/suite", title: "the suite of Gateway API", takes: "about 5 minutes on 2 cores",
		tests: true, tools: []string{"sigs.k8s.io/gateway-api/conformance/echo-basic"},
		source: gatewayModule,
	}
	return m.fetch(ctx, progress)
}

// DefineGatewayAPI applies the CRDs of a channel of Gateway API, in the version that the repository
// around the working directory requires. It returns when the API server lists objects of each kind.
// For a moment the API server answers 429 instead.
func (l *Lab) DefineGatewayAPI(ctx context.Context, channel Channel) error {
	folder, err := moduleFolder(ctx, "", gatewayModule)
	if err != nil {
		return fmt.Errorf("find the CRDs of Gateway API: %w", err)
	}
	folder = filepath.Join(folder, filepath.FromSlash(gatewayCRDs), string(channel))
	files, kinds, err := gatewayKinds(folder)
	if err != nil {
		return err
	}
	args := []string{"apply", "--server-side"}
	for _, file := range files {
		args = append(args, "-f", file)
	}
	if out, err := l.Kubectl(ctx, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("define the kinds of Gateway API: %w\n%s", err, out)
	}
	return await(ctx, "the kinds of Gateway API", patience, func(ctx context.Context) (bool, error) {
		out, err := l.Kubectl(ctx, "get", "--all-namespaces", strings.Join(kinds, ",")).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err == nil, err
	})
}

// gatewayKinds returns the files of a folder that define Gateway API, and the kinds in them, as kubectl
// names them. It leaves out the kinds of the group gateway.networking.x-k8s.io.
func gatewayKinds(folder string) (files, names []string, err error) {
	const group = "gateway.networking.k8s.io"
	files, err = filepath.Glob(filepath.Join(folder, group+"_*.yaml"))
	for _, file := range files {
		_, plural, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".yaml"), "_")
		if !strings.HasPrefix(plural, "vap_") {
			names = append(names, plural+"."+group)
		}
	}
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("%s has no CRD of Gateway API", folder)
	}
	return files, names, err
}
