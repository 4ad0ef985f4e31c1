//go:build !race

package bgp

// The tests mostly wait for the timers of other programs.
const parallel = "16"
