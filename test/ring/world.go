package main

import (
	"math/rand/v2"
	"slices"
)

// largest is the greatest group that appliance/config allows.
const largest = 8

// A world is a group, the routers in front of it, and connections that clients hold.
//
//	clients ══ spread over routers ══ each spreads over the appliances ══ ring
type world struct {
	random     *rand.Rand // makes connections and routers
	dice       *rand.Rand // makes faults, the same ones with second chance and without
	hashing    hashing
	largest    int // the greatest group that second chance works in; 1: there is none
	appliances []appliance
	routers    []router
	outside    spread // over the routers that are up
	flows      []flow
	passed     int // packets that second chance has led to the owner of their connection
	hops       int // of these packets
	longest    int // hops of one of them
}

// An appliance is a member of the group; its place in the ring is its number.
type appliance struct {
	announced bool // the routers have the address from it
	alive     bool // other members hear it
}

type router struct {
	up   bool
	seed uint64
	over spread // the appliances
}

// A flow is a connection. Once it is broken it stays so.
type flow struct {
	key    uint64 // stands for its addresses and ports
	owner  int    // the appliance whose kernel holds it
	broken bool
}

// newWorld returns a group that serves. It has no connections yet.
func newWorld(seed uint64, appliances, routers int, h hashing, largest int) *world {
	w := &world{
		random:     rand.New(rand.NewPCG(seed, 0)), //nolint:gosec // the same seed has to give the same figures
		dice:       rand.New(rand.NewPCG(seed, 1)), //nolint:gosec // the same
		hashing:    h,
		largest:    largest,
		appliances: make([]appliance, appliances),
		routers:    make([]router, routers),
		outside:    h.spread(),
	}
	for i := range w.appliances {
		w.appliances[i] = appliance{announced: true, alive: true}
	}
	for i := range w.routers {
		w.start(i)
	}
	w.learn()
	return w
}

// connect opens the first connections.
func (w *world) connect(n int) {
	w.flows = make([]flow, n)
	w.open(func(flow) bool { return true })
}

// open opens a new connection in place of each that which chooses.
func (w *world) open(which func(flow) bool) {
	for i, f := range w.flows {
		if which(f) {
			f = flow{key: w.random.Uint64()}
			f.owner, _ = w.route(f.key)
			w.flows[i] = f
		}
	}
}

// start brings a router up, with a seed of its own.
func (w *world) start(r int) {
	w.routers[r] = router{up: true, seed: w.random.Uint64(), over: w.hashing.spread()}
}

// hash returns the hash of a connection on this router.
func (r *router) hash(key uint64) uint64 { return mix(key ^ r.seed) }

// learn tells the routers which appliances announce, and the network outside which
// routers are up.
func (w *world) learn() {
	var up, announced []int
	for i, a := range w.appliances {
		if a.announced {
			announced = append(announced, i)
		}
	}
	for i := range w.routers {
		if w.routers[i].up {
			up = append(up, i)
		}
	}
	// A connection that is broken keeps no bucket in use.
	outside, inside := []uint64(nil), make([][]uint64, len(w.routers))
	for _, f := range w.flows {
		if r, ok := w.outside.next(f.key); ok && !f.broken {
			outside = append(outside, f.key)
			inside[r] = append(inside[r], w.routers[r].hash(f.key))
		}
	}
	for i := range w.routers {
		w.routers[i].over.set(announced, inside[i])
	}
	w.outside.set(up, outside)
}

// route returns the appliance that the packets of a connection reach now, and false if
// they reach none.
func (w *world) route(key uint64) (int, bool) {
	r, ok := w.outside.next(key)
	if !ok {
		return 0, false
	}
	return w.routers[r].over.next(w.routers[r].hash(key))
}

// look lets a packet of each connection come, and marks those that it breaks.
func (w *world) look() {
	for i := range w.flows {
		f := &w.flows[i]
		at, ok := w.route(f.key)
		switch {
		case !ok || f.broken || at == f.owner:
		case len(w.appliances) > w.largest || !w.appliances[f.owner].alive:
			f.broken = true
		default:
			n := w.around(at, f.owner)
			w.passed++
			w.hops += n
			w.longest = max(w.longest, n)
		}
	}
}

// around returns how often a packet is passed on in the ring to get from one appliance to
// another. The ring leads through all that are alive.
func (w *world) around(from, to int) (n int) {
	for i := from; i != to; {
		if i = (i + 1) % len(w.appliances); w.appliances[i].alive {
			n++
		}
	}
	return n
}

// A hashing is how a router keeps the packets of a flow together.
type hashing struct {
	name   string
	spread func() spread
}

var hashings = []hashing{
	{"plain", func() spread { return &plain{} }},
	{"resilient", func() spread { return &resilient{} }},
}

// A spread chooses one of several next hops for each hash.
type spread interface {
	set(hops []int, busy []uint64) // the next hops from now on; busy holds the hashes in use
	next(hash uint64) (int, bool)
}

// plain gives each next hop an equal part of all hashes, in the order of the next hops
// (RFC 2992, as Linux does by default). A next hop that comes or goes moves the borders
// of the others.
type plain struct{ hops []int }

func (p *plain) set(hops []int, _ []uint64) { p.hops = hops }

func (p *plain) next(hash uint64) (int, bool) {
	if len(p.hops) == 0 {
		return 0, false
	}
	return p.hops[hash>>32*uint64(len(p.hops))>>32], true
}

// resilient maps hashes to buckets, and each bucket to a next hop (Linux: "nexthop group
// type resilient"). A next hop that goes gives its own buckets to others. One that comes
// gets buckets that nobody uses.
type resilient struct {
	hops    []int
	buckets []int
}

// size is the number of buckets.
const size = 8192

func bucket(hash uint64) int { return int(hash >> 51) }

func (r *resilient) set(hops []int, busy []uint64) {
	had := r.hops
	r.hops = hops
	if len(hops) == 0 {
		r.buckets = nil
		return
	}
	if len(r.buckets) == 0 {
		had, r.buckets = hops, make([]int, size)
		for i := range r.buckets {
			r.buckets[i] = hops[i%len(hops)]
		}
	}
	if slices.Equal(had, hops) {
		return
	}
	used := make([]bool, size)
	for _, hash := range busy {
		used[bucket(hash)] = true
	}
	var wanted [mostAppliances]bool
	for _, hop := range hops {
		wanted[hop] = true
	}
	var count [mostAppliances]int
	for _, hop := range r.buckets {
		count[hop]++
	}
	fewest := func() int {
		return slices.MinFunc(hops, func(a, b int) int { return count[a] - count[b] })
	}
	for i, hop := range r.buckets {
		lost := !wanted[hop]
		spare := !used[i] && count[hop] > (size+len(hops)-1)/len(hops)
		if lost || spare {
			count[hop]--
			r.buckets[i] = fewest()
			count[r.buckets[i]]++
		}
	}
}

func (r *resilient) next(hash uint64) (int, bool) {
	if len(r.buckets) == 0 {
		return 0, false
	}
	return r.buckets[bucket(hash)], true
}

// mix makes a hash of a key (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
