// Package appliance keeps the one promise of Sallyport: a server is open for traffic only while the
// kernel holds the verified route to its pod. A route changes only if that redirects the packets of
// no open server.
//
// It owns the loop. A round reads every source whole: the offers of the BGP peers, and the objects
// of the clusters. It computes the wanted state from them, and reads back the actual state: the
// routes in the kernel, and the servers in HAProxy. plan.Plan names the steps that are safe now.
// The round takes them, and the next round looks again. An event is only a knock: it says that a
// round is due, and never what happened. One goroutine writes the kernel and HAProxy, so no lock
// orders them.
//
//	offers ──▶ routes.Verify ──▶ ┐                        ┌──▶ kernel
//	                             ├ Want ─▶ Plan ─▶ steps ─┤
//	objects ─▶ ingress.Compile ▶ ┘   Have ──┘             └──▶ HAProxy
//
// The configuration file is one more source, read again after a knock. The settings that may change
// while the process runs are one value, which a round reads; package config declares which keys
// these are. The loop compares the settings with the open clusters. It opens the new clusters and
// closes those that were removed. A cluster with changed settings gets a new watcher, and keeps the
// old one until the new one has read the whole cluster.
//
// Everything that it creates carries a mark: the routes in the kernel have our route protocol
// number, and HAProxy's state has its generation. A new process adopts both, so a restart closes no
// server and drops no route. A route that it finds counts as the offer of a session that our own
// restart ended, until the peer has sent its offers again.
//
// In a group of appliances a round has one more edge. group.Fit decides from the facts of the round
// whether this appliance is full, spare or none for the service addresses. The round puts the
// addresses on lo, announces them according to that class, and tells the other members. The reports
// of the other members decide only two things: the ring of second chance, and whether a drain
// leaves a member that serves. The sessions with the routers have a process of their own, which
// goes on after a crash of sallyport: see package upstream.
//
// An object that crashes the process would crash every later process. After some crashes the loop
// therefore begins with the last good pictures of the clusters. A quarantine then tries the newer
// versions of objects part by part.
//
// Some parts of the loop have a state of their own. The follower follows the configuration file.
// The membership is the part in a group. The adoption holds the state that an earlier process left.
// The judge remembers since when a fault lasts. They see the view of a round and not the loop.
//
// Its limit: it decides by routes and by the endpoints that the API reports. HAProxy's health
// checks find out whether a pod answers.
package appliance
