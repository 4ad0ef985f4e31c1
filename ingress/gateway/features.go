package gateway

import "slices"

// supported are the features of the API that are claimed, by the names of its conformance suite.
// Each is claimed only once its tests pass.
var supported = []string{
	"Gateway",
	"HTTPRoute",
	"ReferenceGrant",
}

// SupportedFeatures returns the features of the API that are supported, in order. The status of a
// GatewayClass, the manual and the conformance suite all take them from here.
func SupportedFeatures() []string { return slices.Sorted(slices.Values(supported)) }
