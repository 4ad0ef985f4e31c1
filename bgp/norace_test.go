//go:build !race

package bgp

// The tests mostly wait for the timers of other programs.
const parallel = "16"

// processes is how many processes the tests are divided into.
const processes = 1
