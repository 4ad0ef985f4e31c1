package main

// An event is what happens to a group, in steps. A packet of each connection comes after
// each step.
type event struct {
	name    string
	prepare func(*world) // before the connections are opened; nil: nothing
	steps   func(*world) []func()
	times   int // it is played in a row; 0: once
}

var events = []event{
	{name: "the first leaves", steps: func(w *world) []func() { return []func(){w.leave(0)} }},
	{name: "one in the middle leaves", steps: func(w *world) []func() {
		return []func(){w.leave(len(w.appliances) / 2)}
	}},
	{
		name:    "the first comes in",
		prepare: func(w *world) { w.leave(0)() },
		steps:   func(w *world) []func() { return []func(){w.come(0)} },
	},
	{name: "the first leaves and returns", steps: func(w *world) []func() { return []func(){w.leave(0), w.come(0)} }},
	{name: "all are updated in turn", steps: func(w *world) (all []func()) {
		for i := range w.appliances {
			all = append(all, w.update(i)...)
		}
		return all
	}},
	{name: "the first dies", steps: func(w *world) []func() { return []func(){w.die(0)} }},
	{name: "a router restarts", steps: func(w *world) []func() { return w.restart(0) }},
	{name: "a random fault", steps: func(w *world) []func() { return w.fault() }, times: 20},
}

// play plays the event in a world, and returns the share of its connections that breaks, on
// average of all times. Clients open broken connections again after each time.
func (e event) play(w *world, connections int) float64 {
	if e.prepare != nil {
		e.prepare(w)
	}
	w.connect(connections)
	times, broken := max(e.times, 1), 0
	for range times {
		for _, step := range e.steps(w) {
			step()
			w.look()
		}
		for _, f := range w.flows {
			if f.broken {
				broken++
			}
		}
		w.open(func(f flow) bool { return f.broken })
	}
	return float64(broken) / float64(connections*times)
}

// leave returns the step in which an appliance withdraws the address. It keeps its
// connections.
func (w *world) leave(i int) func() {
	return func() { w.appliances[i].announced = false; w.learn() }
}

// come returns the step in which an appliance announces the address.
func (w *world) come(i int) func() {
	return func() { w.appliances[i] = appliance{announced: true, alive: true}; w.learn() }
}

// die returns the step in which an appliance loses its power.
func (w *world) die(i int) func() {
	return func() {
		w.appliances[i] = appliance{}
		for j := range w.flows {
			w.flows[j].broken = w.flows[j].broken || w.flows[j].owner == i
		}
		w.learn()
	}
}

// update returns the steps of an update: an appliance leaves, and asks its clients to
// connect again. Once they have, it restarts, and comes back.
func (w *world) update(i int) []func() {
	end := func() {
		w.open(func(f flow) bool { return f.owner == i && !f.broken })
		w.appliances[i].alive = false
	}
	return []func(){w.leave(i), end, w.come(i)}
}

// restart returns the steps in which a router goes, and comes back with another seed.
func (w *world) restart(r int) []func() {
	return []func(){
		func() { w.routers[r].up = false; w.learn() },
		func() { w.start(r); w.learn() },
	}
}

// fault returns the steps of a random fault. It leaves the group as whole as it was.
func (w *world) fault() []func() {
	i, r := w.dice.IntN(len(w.appliances)), w.dice.IntN(len(w.routers))
	switch w.dice.IntN(4) {
	case 0:
		return w.update(i)
	case 1:
		return []func(){w.die(i), w.come(i)}
	case 2:
		return []func(){w.leave(i), w.come(i)}
	}
	return w.restart(r)
}
