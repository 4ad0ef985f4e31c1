package move

import (
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// keepalived has the instances of all files of keepalived.
type keepalived struct {
	seen      bool
	routerID  string
	instances []instance
	remarks   []Remark
	idle      []Place
	size      int
}

// An instance is a vrrp_instance.
type instance struct {
	at        Place
	name      string
	link      string
	id        int
	interval  string
	addresses []netip.Addr
	own       netip.Addr
	peers     []netip.Addr
}

// A line is a line of keepalived's: words, and whether a block opens or closes.
type line struct {
	words []string
	at    Place
}

// lines returns the words of each line. A brace is a line of its own.
func (k *keepalived) lines(f File, read Reader, depth int) (all []line, err error) {
	if k.size += len(f.Text); k.size > MaxSize {
		return nil, errorAt(Place{File: f.Name}, "it has more than %d bytes with the files that it includes", MaxSize)
	}
	for i, text := range strings.Split(string(f.Text), "\n") {
		at := Place{f.Name, i + 1}
		words := keepalivedWords(text)
		if len(words) > 1 && words[0] == "include" {
			name := words[1]
			if !path.IsAbs(name) {
				name = filepath.Join(filepath.Dir(f.Name), name)
			}
			var files []File
			if read != nil && depth < maxIncludes {
				files, err = read(name)
			}
			if err != nil || len(files) == 0 {
				k.remarks = append(k.remarks, Remark{
					Kind: Left, At: at, What: "include " + name,
					Why: "the file cannot be read, or includes are nested too deep",
					Do:  "Import it together with this file",
				})
				err = nil
				continue
			}
			for _, one := range files {
				more, err := k.lines(one, read, depth+1)
				if err != nil {
					return nil, err
				}
				all = append(all, more...)
			}
			continue
		}
		var now []string
		end := func() {
			if len(now) > 0 {
				all = append(all, line{now, at})
			}
			now = nil
		}
		for _, w := range words {
			if w == "{" || w == "}" {
				end()
				all = append(all, line{[]string{w}, at})
				continue
			}
			now = append(now, w)
		}
		end()
	}
	return all, nil
}

// keepalivedWords returns the words of a line, without its comment.
func keepalivedWords(text string) (all []string) {
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		switch c := text[0]; c {
		case '#', '!':
			return all
		case '"', '\'':
			end := strings.IndexByte(text[1:], c)
			if end < 0 {
				return append(all, text[1:])
			}
			all = append(all, text[1:1+end])
			text = text[2+end:]
		case '{', '}':
			all = append(all, text[:1])
			text = text[1:]
		default:
			end := strings.IndexAny(text, " \t\r{}")
			if end < 0 {
				return append(all, text)
			}
			all = append(all, text[:end])
			text = text[end:]
		}
	}
	return all
}

// A part is a line with the lines of its block.
type part struct {
	line
	block []part
}

// parts returns the parts up to a closing brace, and the lines after it.
func parts(all []line, depth int) (list []part, rest []line, err error) {
	for len(all) > 0 {
		one := all[0]
		all = all[1:]
		switch one.words[0] {
		case "}":
			if depth == 0 {
				return nil, nil, errorAt(one.at, "} closes nothing")
			}
			return list, all, nil
		case "{":
			if depth == maxNested {
				return nil, nil, errorAt(one.at, "blocks are nested deeper than %d", maxNested)
			}
			inner, after, err := parts(all, depth+1)
			if err != nil {
				return nil, nil, err
			}
			if after == nil {
				return nil, nil, errorAt(one.at, "{ is not closed")
			}
			if len(list) == 0 {
				list = append(list, part{line: line{[]string{""}, one.at}})
			}
			list[len(list)-1].block = inner
			all = after
		default:
			list = append(list, part{line: one})
		}
	}
	return list, nil, nil
}

// read reads a file.
func (k *keepalived) read(f File, read Reader) error {
	k.seen = true
	all, err := k.lines(f, read, 0)
	if err != nil {
		return err
	}
	list, _, err := parts(all, 0)
	if err != nil {
		return err
	}
	for _, p := range list {
		switch p.words[0] {
		case "global_defs":
			for _, one := range p.block {
				switch word := one.words[0]; {
				case word == "router_id" && len(one.words) > 1:
					k.routerID = one.words[1]
				case strings.HasPrefix(word, "notif") || strings.HasPrefix(word, "smtp"):
					k.remark(Left, one, "the appliance sends no mail and starts no script",
						"appliance/alerts.yaml has alerts for Prometheus")
				default:
					k.idle = append(k.idle, one.at)
				}
			}
		case "vrrp_instance":
			k.instance(p)
		case "vrrp_script", "vrrp_track_process", "vrrp_track_file", "vrrp_sync_group", "track_group":
			k.remark(Changed, p, "the appliance itself decides whether it is fit to serve: HAProxy, sessions and "+
				"routes", "")
		case "virtual_server", "virtual_server_group":
			k.remark(Left, p, "HAProxy sends connections to pods, and there is no LVS",
				"Serve it by an Ingress, or by a Service of type LoadBalancer")
		default:
			k.remark(Left, p, "nothing here does it", "")
		}
	}
	return nil
}

func (k *keepalived) remark(kind Kind, p part, why, do string) {
	k.remarks = append(k.remarks, Remark{Kind: kind, At: p.at, What: p.words[0], Why: why, Do: do})
}

// instance reads a vrrp_instance.
func (k *keepalived) instance(p part) {
	v := instance{at: p.at}
	if len(p.words) > 1 {
		v.name = p.words[1]
	}
	for _, one := range p.block {
		value := ""
		if len(one.words) > 1 {
			value = one.words[1]
		}
		switch one.words[0] {
		case "interface":
			v.link = value
		case "virtual_router_id":
			v.id, _ = strconv.Atoi(value)
		case "advert_int":
			v.interval = interval(value)
		case "virtual_ipaddress", "virtual_ipaddress_excluded":
			k.addresses(&v, one)
		case "unicast_src_ip", "mcast_src_ip":
			v.own, _ = netip.ParseAddr(value)
		case "unicast_peer":
			for _, peer := range one.block {
				if a, err := netip.ParseAddr(peer.words[0]); err == nil {
					v.peers = append(v.peers, a)
				}
			}
		case "priority", "state", "nopreempt", "preempt_delay", "preempt":
			k.remark(Changed, one, "the addresses are spread over the members that serve, and no member is first", "")
		case "authentication":
			k.remark(Changed, one, "VRRP version 3 has no passwords (RFC 5798); the members sign their own "+
				"heartbeat with "+
				"group.secretFile", "")
		case "track_script", "track_interface", "track_process", "track_file", "track_bfd":
			k.remark(Changed, one, "the appliance itself decides whether it is fit to serve", "")
		case "virtual_routes", "virtual_rules":
			k.remark(Left, one, "no routes or rules move with an address", "Write them in the network "+
				"configuration of "+
				"each member")
		case "version", "garp_master_delay", "garp_master_repeat", "garp_master_refresh", "garp_lower_prio_delay",
			"dont_track_primary", "use_vmac", "vmac_xmit_base", "debug", "native_ipv6", "accept", "no_accept",
			"garp_lower_prio_repeat", "garp_master_refresh_repeat", "strict_mode", "smtp_alert":
			k.idle = append(k.idle, one.at)
		default:
			k.remark(Left, one, "nothing here does it", strings.TrimSpace(replacementOf(one.words[0])))
		}
	}
	k.instances = append(k.instances, v)
}

// replacementOf returns a sentence about a replacement of a script, or nothing.
func replacementOf(word string) string {
	if strings.HasPrefix(word, "notify") {
		return "sallyport events and the metrics report when a member serves"
	}
	return ""
}

// interval returns an advert_int as a duration.
func interval(seconds string) string {
	f, err := strconv.ParseFloat(seconds, 64)
	if err != nil || f <= 0 || f > 255 {
		return ""
	}
	return (time.Duration(f*100) * 10 * time.Millisecond).String()
}

// addresses reads the addresses of an instance.
func (k *keepalived) addresses(v *instance, p part) {
	for _, one := range p.block {
		text, _, _ := strings.Cut(one.words[0], "/")
		a, err := netip.ParseAddr(text)
		if err != nil {
			k.remark(Left, one, "it is no address", "")
			continue
		}
		v.addresses = append(v.addresses, a)
		i := slices.Index(one.words, "dev")
		if i >= 0 && i+1 < len(one.words) && v.link != "" && one.words[i+1] != v.link {
			k.remarks = append(k.remarks, Remark{
				Kind: Left, At: one.at, What: a.String() + " dev " + one.words[i+1],
				Why: "all addresses of a group are on one interface",
				Do:  "Leave the address to keepalived, or move its network",
			})
			v.addresses = v.addresses[:len(v.addresses)-1]
		}
	}
}

// apply writes the keys of the files.
func (k *keepalived) apply(d *draft) {
	if !k.seen {
		return
	}
	for _, r := range k.remarks {
		d.note("", r)
	}
	d.idle = append(d.idle, k.idle...)
	if len(k.instances) == 0 {
		return
	}
	slices.SortStableFunc(k.instances, func(a, b instance) int { return a.id - b.id })
	first := k.instances[0]
	var own netip.Addr
	var others []netip.Addr
	for _, v := range k.instances {
		if v.link != first.link {
			d.note("group.vrrp.interface", Remark{
				Kind: Left, At: v.at, What: "vrrp_instance " + v.name, Why: "a group has one interface for VRRP",
				Do: "Leave the instance to keepalived",
			})
			continue
		}
		for _, a := range v.addresses {
			d.add("group.addresses", address(a))
		}
		for _, a := range v.peers {
			if !slices.Contains(others, a) {
				others = append(others, a)
			}
		}
		if v.own.IsValid() {
			own = v.own
		}
		if v.interval != "" {
			d.set("group.vrrp.interval", v.interval, v.at, "advert_int")
		}
	}
	d.replace("group.vrrp.interface", quoted(first.link))
	if first.id > 0 {
		d.replace("group.vrrp.id", strconv.Itoa(first.id))
		d.note("group.vrrp.id", Remark{
			Kind: ToDo, At: first.at, What: "virtual_router_id " + strconv.Itoa(first.id),
			Why: "the group uses as many IDs in a row from this one as it has members, or addresses if these are fewer",
			Do:  "See that nothing else in the network has them, keepalived of before included",
		})
	}
	if len(others) == 0 {
		d.note("group.members", Remark{
			Kind: ToDo, At: first.at, Why: "without unicast_peer the file does not name the other members",
			Do: "Add each with its address",
		})
	}
	if !own.IsValid() && len(d.at("bgp.listen").values) == 1 {
		own, _ = netip.ParseAddr(strings.Trim(d.first("bgp.listen"), `"`))
	}
	if k.routerID != "" && !d.has("identity") && simple.MatchString(k.routerID) && !strings.Contains(k.routerID, "/") {
		d.replace("identity", quoted(k.routerID))
	}
	d.group(own, others, first.at)
}
