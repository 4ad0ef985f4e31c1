package world

import (
	"context"
	"io"
)

// OAuth2Proxy returns the program oauth2-proxy, in the version that test/lab/oauth2proxy requires. It
// compiles the program if the cache does not have it.
func OAuth2Proxy(ctx context.Context, progress io.Writer) (string, error) {
	m := module{
		folder: "lab/oauth2proxy", title: "oauth2-proxy", takes: "about 2 minutes on 2 cores",
		program: "github.com/oauth2-proxy/oauth2-proxy/v7",
	}
	return m.fetch(ctx, progress)
}
