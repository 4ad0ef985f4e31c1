package appliance

import (
	"fmt"
	"strings"
	"time"

	"sallyport/appliance/page"
)

// mark returns the mark of a class.
func (c Class) mark() page.Mark {
	switch c {
	case Full:
		return page.Good
	case Spare:
		return page.Warn
	}
	return page.Bad
}

// drawGroup adds to a diagram the service addresses, and what the appliance is in its
// group.
func drawGroup(d *page.Diagram, g *GroupStatus) {
	if g == nil {
		return
	}
	var addresses []string
	for _, a := range g.Addresses {
		addresses = append(addresses, a.Address.String())
	}
	d.Clients.Lines = append(addresses, d.Clients.Lines...)
	d.Clients.Lines = d.Clients.Lines[:min(len(d.Clients.Lines), 4)]
	alive := countFunc(g.Members, func(m MemberStatus) bool { return m.Self || m.Alive })
	mark := g.Class.mark()
	if g.Draining {
		mark = page.Warn
	}
	d.Appliance.Mark = d.Appliance.Mark.Worse(mark)
	class := string(g.Class)
	if g.Draining {
		class += ", drains"
	}
	d.Appliance.Lines = append(d.Appliance.Lines, class, fmt.Sprintf("%d of %d members alive", alive, len(g.Members)))
}

// groupSections returns the sections about the group; none if there is no group.
func groupSections(g *GroupStatus) []page.Section {
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
				heard = m.Age.Round(time.Second).String() + " ago"
			}
		}
		class := page.Cell{Text: string(m.Class), Mark: m.Class.mark()}
		switch {
		case !m.Self && !m.Alive:
			class = page.Cell{Text: "silent", Mark: page.Bad}
		case m.Draining:
			class = page.Cell{Text: class.Text + ", drains", Mark: page.Warn}
		}
		problem := m.Problem
		if m.Differs {
			problem = strings.TrimSpace("Its configuration is another one. " + problem)
		}
		members.Rows = append(members.Rows, []page.Cell{{Text: m.Name}, {Text: m.Address.String(), Mono: true}, class, {Text: heard}, {Text: m.Version}, {Text: problem}})
	}
	addresses := &page.Table{Columns: columns("address", "on this machine", "announced to", "by VRRP", "Services")}
	for _, a := range g.Addresses {
		held := page.Cell{Text: "yes", Mark: page.Good}
		if !a.Held {
			held = page.Cell{Text: "no", Mark: page.Bad}
		}
		to := listed(a.Announced)
		byVRRP := ""
		if a.VRRP {
			byVRRP = "here"
		}
		addresses.Rows = append(addresses.Rows, []page.Cell{{Text: a.Address.String(), Mono: true}, held, {Text: to, Mono: true}, {Text: byVRRP}, {Text: strings.Join(a.Services, ", ")}})
	}
	section := page.Section{ID: "group", Title: "Group " + g.Name, Note: "this appliance is " + string(g.Class), Table: members}
	if g.Why != "" {
		section.Lines = lines(g.Class.mark(), []string{g.Why})
	}
	if g.Ring.Problem != "" {
		section.Lines = append(section.Lines, lines(page.Warn, []string{g.Ring.Problem})...)
	}
	sections := []page.Section{section, {ID: "addresses", Title: "Service addresses", Table: addresses}}
	if len(g.Services) == 0 {
		return sections
	}
	services := &page.Table{Columns: columns("Service", "cluster", "addresses", "ports", "~why")}
	for _, s := range g.Services {
		at := page.Cell{Text: listed(s.Addresses), Mono: true, Mark: page.Good}
		if len(s.Addresses) == 0 {
			at = page.Cell{Text: "none", Mark: page.Warn}
		}
		services.Rows = append(services.Rows, []page.Cell{{Text: s.Service}, {Text: s.Cluster}, at, {Text: strings.Trim(fmt.Sprint(s.Ports), "[]"), Mono: true}, {Text: s.Why}})
	}
	return append(sections, page.Section{ID: "services", Title: "Services of type LoadBalancer", Table: services})
}
