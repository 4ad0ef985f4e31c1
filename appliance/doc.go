// Package appliance keeps the one promise of Sallyport: a server is open for
// traffic only while the kernel holds the verified route to its pod, and a
// route changes only when no open server's packets would turn with it.
//
// It owns the loop. A round reads every source whole (the offers of the BGP
// peers, the objects of the clusters), computes the wanted state from them, reads
// back the actual state (the routes in the kernel, the servers in HAProxy), lets
// plan.Plan name the steps that are safe now, takes them, and looks again. An event
// is only a knock on the door: it says that a round is due, never what
// happened. One goroutine writes the kernel and HAProxy, so no lock orders
// them.
//
//	offers ──▶ routes.Verify ──▶ ┐                        ┌──▶ kernel
//	                             ├ Want ─▶ Plan ─▶ steps ─┤
//	objects ─▶ ingress.Compile ▶ ┘   Have ──┘             └──▶ HAProxy
//
// The configuration file is one more source, read again after a knock. The settings
// that may change while the process runs are one value, which a round reads; package
// config declares which keys these are. The loop compares the settings with the open
// clusters, opens new ones and closes others. It keeps the old until the new is known.
//
// What it creates carries a mark: the kernel's routes the route protocol
// number, HAProxy's state its generation. A fresh process adopts both: the
// routes it finds count as offers of sessions that our own restart ended, until
// the peer has spoken again, so a restart closes nothing and drops nothing.
//
// In a group of appliances a round has one more edge: group.Fit decides from its facts whether
// this appliance is full, spare or none for the service addresses, and the round puts
// them on lo, announces them by that class, and tells the other members. What the others
// say decides only the ring of second chance, and whether a drain leaves somebody who
// serves. The sessions with the routers have a process of their own, which goes on after a
// crash of sallyport: see package upstream.
//
// An object that ends the process would end every later process, too. So after some
// crashes the loop begins with the last good pictures of the clusters. A quarantine then
// tries the newer versions of objects part by part.
//
// The loop has parts with a state of their own: a follower of the configuration file, the
// membership in a group, the adoption of what an earlier process left, and a judge, who remembers
// since when something is wrong. They see the view of a round and not the loop.
//
// Its limit: it decides by routes and by what the API says of endpoints.
// Whether a pod answers is for HAProxy's health checks.
package appliance
