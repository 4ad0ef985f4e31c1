package pages

import (
	"fmt"

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
	section := page.Section{
		ID: "group", Title: "Group " + g.Name, Note: "this appliance is " + string(g.Class),
		Table: tableOf(q, status.MemberTable, g.Members),
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
