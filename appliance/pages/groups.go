package pages

import (
	"cmp"
	"fmt"
	"strings"

	"sallyport/appliance/group"
	"sallyport/appliance/page"
	"sallyport/appliance/status"
)

// markOf returns the mark of a class.
func markOf(c group.Class) page.Mark {
	switch c {
	case group.Full:
		return page.Good
	case group.Spare:
		return page.Warn
	}
	return page.Bad
}

// drawGroup adds to a diagram the service addresses, and the class of the appliance in its group.
func drawGroup(d *page.Diagram, g *status.GroupStatus) {
	if g == nil {
		return
	}
	var addresses []string
	for _, a := range g.Addresses {
		addresses = append(addresses, a.Address.String())
	}
	d.Clients.Lines = append(addresses, d.Clients.Lines...)
	d.Clients.Lines = d.Clients.Lines[:min(len(d.Clients.Lines), 4)]
	mark := markOf(g.Class)
	if g.Draining {
		mark = page.Warn
	}
	d.Appliance.Mark = d.Appliance.Mark.Worse(mark)
	class := string(g.Class)
	if g.Draining {
		class += ", drains"
	}
	d.Appliance.Lines = append(d.Appliance.Lines, class)
	if len(g.Members) > membersDrawn {
		alive := status.CountFunc(g.Members, func(m status.MemberStatus) bool { return m.Alive })
		d.Appliance.Lines = append(d.Appliance.Lines, fmt.Sprintf("%d of %d members alive", alive, len(g.Members)))
		return
	}
	for _, m := range g.Members {
		if !m.Self {
			state := stateOfMember(m)
			d.Appliance.Notes = append(d.Appliance.Notes, page.Line{Mark: state.Mark, Text: state.Text + ": " + m.Name})
		}
	}
}

// membersDrawn is the largest size of a group with every member in the drawing.
const membersDrawn = 5

// state describes how a member offers itself.
func stateOfMember(m status.MemberStatus) page.Cell {
	switch {
	case !m.Alive:
		return page.Cell{Text: "silent", Mark: page.Bad}
	case m.Draining:
		return page.Cell{Text: string(m.Class) + ", drains", Mark: page.Warn}
	}
	return page.Cell{Text: string(m.Class), Mark: markOf(m.Class)}
}

// entrance describes the door between the clients and this appliance: whether routers or VRRP send
// clients here. Without a group, or if the group has neither routers nor VRRP, the door counts as
// open, because nothing shows how clients come. It is idle if no client is to come here: there is no
// address, this appliance drains, or another member serves.
func (q *request) entrance() page.Door {
	s := q.status
	ways := status.Ways(&q.index.View.Settings.Config.Group)
	switch {
	case s.HAProxy.Worker == 0:
		return page.Door{Mark: page.Bad, Label: "HAProxy does not run"}
	case s.Group == nil || len(ways) == 0:
		return page.Door{Mark: page.Good}
	case len(s.Group.Addresses) == 0:
		return page.Door{Mark: page.Idle, Label: "no service address yet"}
	case s.Group.Draining && !s.Group.ComesHere():
		return page.Door{Mark: page.Idle, Label: "drained"}
	}
	marks := [...]page.Mark{
		status.Open: page.Good, status.Partly: page.Warn, status.Shut: page.Bad, status.Elsewhere: page.Idle,
	}
	e := ways[0].Entrance(&s)
	return page.Door{Mark: marks[e.State], Label: e.Label}
}

// groupSections returns the sections about the group, or nil without a group. drain says whether
// the viewer may drain the appliance.
func (q *request) groupSections(drain bool) []page.Section {
	g := q.status.Group
	if g == nil {
		return nil
	}
	members := &page.Table{Columns: columns("member", "address", "class", "heard", "version", "~problem")}
	for _, m := range g.Members {
		heard := "this one"
		if !m.Self {
			switch {
			case m.Alive:
				heard = "now"
			case m.Class == "":
				heard = "never"
			default:
				heard = status.Lasting(m.Age) + " ago"
			}
		}
		members.Rows = append(members.Rows,
			[]page.Cell{
				{Text: m.Name},
				{Text: m.Address.String(), Mono: true},
				stateOfMember(m),
				{Text: heard},
				{Text: m.Version},
				{Text: m.Trouble()},
			})
	}
	section := page.Section{
		ID: "group", Title: "Group " + g.Name, Note: "this appliance is " + string(g.Class),
		Table: members,
	}
	if drain {
		section.More = &page.Link{Text: "drain…", Href: DrainPath}
		if g.Draining {
			section.More.Text = "end the drain…"
		}
	}
	if g.Why != "" {
		section.Lines = lines(markOf(g.Class), []string{g.Why})
	}
	// all of them are among the warnings
	section.Lines = append(section.Lines, lines(page.Warn, g.Problems[:min(len(g.Problems), linesShown)])...)
	if g.Ring.Problem != "" {
		section.Lines = append(section.Lines, lines(page.Warn, []string{g.Ring.Problem})...)
	}
	sections := []page.Section{section}
	for _, list := range []string{"addresses", "services"} {
		if section, total := q.list(list, rowsShown); total > 0 {
			sections = append(sections, inShort(section, total, "/"+list))
		}
	}
	return sections
}

// addressList lists the service addresses, those first that need attention.
func (q *request) addressList(size int) (page.Section, int) {
	g := q.status.Group
	if g == nil {
		return page.Section{
			ID: "addresses", Title: "Service addresses",
			Table: &page.Table{Empty: "none: this appliance is in no group"},
		}, 0
	}
	all := firstOf(g.Addresses, size, func(a status.AddressOfGroup) bool { return !a.Held || q.status.Unheard(a) })
	t, n := paged(q, size, all, func(a status.AddressOfGroup, text string) bool {
		return has(text, a.Address.String()) || has(text, a.Services...)
	}, func(a status.AddressOfGroup) []page.Cell {
		held := page.Cell{Text: "yes", Mark: page.Good}
		if !a.Held {
			held = page.Cell{Text: "no", Mark: page.Bad}
		}
		to, byVRRP := page.Cell{}, ""
		switch {
		case len(a.Announced) > 0:
			to = page.Cell{Text: status.Listed(a.Announced), Mono: true}
		case q.status.Unheard(a):
			to = page.Cell{Text: "nobody", Mark: page.Bad}
		case g.Draining:
			to = page.Cell{Text: "nobody", Mark: page.Idle}
		}
		if a.VRRP {
			byVRRP = "here"
		}
		return []page.Cell{
			{Text: a.Address.String(), Mono: true},
			held, to,
			{Text: byVRRP},
			{Text: strings.Join(a.Services, ", ")},
		}
	}, columns("address", "on this machine", "announced to", "by VRRP", "Services")...)
	t.Empty = cmp.Or(t.Empty, "none yet: no Service has an address")
	return page.Section{ID: "addresses", Title: "Service addresses", Table: t, Filter: q.filter("address or Service")},
		n
}

// serviceList lists the Services of type LoadBalancer, those first that lack something.
func (q *request) serviceList(size int) (page.Section, int) {
	var all []status.ServiceStatus
	if g := q.status.Group; g != nil {
		all = firstOf(g.Services, size, func(s status.ServiceStatus) bool {
			return len(s.Addresses) == 0 || s.Why != ""
		})
	}
	t, n := paged(q, size, all, func(s status.ServiceStatus, text string) bool {
		return has(text, s.Service, status.Listed(s.Addresses))
	}, func(s status.ServiceStatus) []page.Cell {
		at := page.Cell{Text: status.Listed(s.Addresses), Mono: true, Mark: page.Good}
		if len(s.Addresses) == 0 {
			at = page.Cell{Text: "none", Mark: page.Warn}
		}
		return []page.Cell{
			{Text: s.Service},
			q.clusterCell(s.Cluster), at,
			{Text: strings.Trim(fmt.Sprint(s.Ports), "[]"), Mono: true},
			{Text: s.Why},
		}
	}, columns("Service", "cluster", "addresses", "ports", "~why")...)
	t.Empty = cmp.Or(t.Empty, "none")
	return page.Section{
		ID: "services", Title: "Services of type LoadBalancer", Table: t,
		Filter: q.filter("Service or address"),
	}, n
}

// DrainPath and undrainPath are the addresses of the buttons. Their page has the address drainPath.
const (
	DrainPath   = "/group/drain"
	UndrainPath = "/group/undrain"
)

// mayDrain reports whether this endpoint takes orders: the guard has asked for a password.
func (q *request) mayDrain() bool { return !q.index.View.Settings.Config.Status.Password.IsZero() }

// drainPage returns the page that says whether a drain is possible, with the button for it.
func (q *request) drainPage() (page.Page, bool) {
	g := q.status.Group
	if g == nil || !q.mayDrain() {
		return page.Page{}, false
	}
	name := q.status.Identity
	section := page.Section{ID: "state", Title: "Drain " + name, Note: "this appliance is " + string(g.Class)}
	switch why := q.index.View.Alone(); {
	case g.Draining:
		section.Title = name + " drains"
		section.Lines = lines(page.Warn,
			[]string{"The other members serve. At the end of the drain this appliance announces the service " +
				"addresses again, at first as the last resort, and plainly once it has served well for some seconds."})
		section.Button = &page.Button{Text: "End the drain of " + name, Action: UndrainPath}
	case why != "":
		section.Lines = lines(page.Bad,
			[]string{"Not now: " + why + ". Nobody would serve. On the machine, sallyport drain --force drains " +
				"all the same."})
	default:
		section.Lines = lines(page.Good,
			[]string{"The other members take over: this appliance withdraws the service addresses, and HAProxy " +
				"closes each connection that is kept after its next answer. A restart of sallyport does not end the " +
				"drain, a reboot of the machine does."})
		section.Button = &page.Button{Text: "Drain " + name, Action: DrainPath}
	}
	sections := append([]page.Section{section}, q.groupSections(false)...)
	return page.Page{Title: "drain, " + name, Mark: q.mark(), Crumbs: []page.Link{{Text: "drain"}}, Sections: sections},
		true
}
