//go:build race

package bgp

// GoBGP keeps options of its tables in package variables, which every StartBgp writes. The
// appliance has one speaker. So under the race detector the tests run one at a time, too.
const parallel = "1"

// processes is how many processes the tests are divided into instead.
const processes = 3
