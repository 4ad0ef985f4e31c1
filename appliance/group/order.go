package group

// What a member passes on to all others
//
// Some orders are for the whole group, and an operator gives them to one member (Order). A member sends its
// orders to each other member, in packets besides its heartbeats. It sends them at once when they change, and
// when the other member starts. It repeats them in every tenth Interval, because a packet may be lost. The
// package does not read orders. The caller merges orders that differ.
//
// A member without orders sends no such packets. A member of a version without orders leaves them out.

const (
	// MostOrders is the largest size of the orders of a member, in bytes.
	MostOrders = pageSize
	// orderEvery is the number of heartbeats from one packet with orders to the next.
	orderEvery = 10
)

// Order sets the orders that this appliance passes on: at most MostOrders printable ASCII characters. It cuts
// off what is longer. Heard has the orders of each other member.
func (p *Pulse) Order(text string) {
	text = plain(text, MostOrders)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.orders == text {
		return
	}
	p.orders, p.beats = text, 0
	for _, m := range p.members {
		p.order(m)
	}
}

// order sends the orders of this appliance to a member, if it has some.
func (p *Pulse) order(m *peer) {
	if p.orders != "" {
		p.sendWith(m, m.theirs, page{}, p.orders)
	}
}
