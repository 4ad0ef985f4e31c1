//go:build race

package bgp

// GoBGP keeps options of its tables in package variables that every StartBgp
// writes. The appliance has one speaker; so have the tests, at a time, when
// somebody looks.
const parallel = "1"
