// Package suite is the official conformance suite of Gateway API, compiled as it is. What it looks
// for follows from its flags and from the GatewayClass's own list of supported features.
package suite

import (
	"testing"

	"sigs.k8s.io/gateway-api/conformance"
)

func TestConformance(t *testing.T) { conformance.RunConformance(t) }
