// Package haproxy owns one HAProxy: its files, its process, and the belief about
// its running worker.
//
// It alone knows how a Config becomes HAProxy's text, which changes take a command
// and which a reload, and how the versions differ.
//
// The files on disk are the state; the running worker is a cache of them. Every
// change goes to the files first and to the worker after, and the files lose again
// what HAProxy rejects. Two process variables in haproxy.cfg name the files that a
// worker runs: proc.gen all of them, proc.shape the part that only a reload
// changes. So a fresh process learns by reading, not by reloading, how far a
// running HAProxy is from what it should be, and a crash on any line leaves nothing
// that the next Apply does not see.
//
// HAProxy starts only from files that this process has written and HAProxy has
// checked. Files that the process finds may come from a life that ended before
// HAProxy accepted them, or from somebody else who can write to the disk. So a
// process that finds no HAProxy running waits for the first Apply.
//
// It promises: a server is Open in the worker only if a call of Apply said so;
// endpoints, routes and certificates change without a reload; a reload drops no
// request; nothing counts as done before the worker has confirmed it; Blame names
// the part of a configuration that HAProxy rejects.
//
// Its limits: one HAProxy per configuration directory; a worker that an outsider
// starts from the files (mode external) opens the servers that are open in them,
// and without HAProxy's program here nobody checks them before.
//
// A round, which is one call of Apply, walks through the files from top to bottom:
//
//	apply.go      the round; everything below is called from here
//	validate.go   can all of the Config be written for HAProxy?              pure
//	process.go    find HAProxy's process, or start it from checked files
//	proxy.go      know: read the worker if the belief about it is gone
//	render.go     the text of all files: head.go, frontend.go, backend.go,
//	              map.go                                                     pure
//	reload.go     is a reload needed, and due? Then write, check, reload
//	disk.go       write the files
//	orders.go     compare the worker with the files: the commands            pure
//	worker.go     send the commands, and read what the worker has
//
// A pure file turns values into values, and touches neither disk nor socket. Pure
// too are the files that describe a Config: config.go, the rules of backends
// (directive.go, format.go, text.go, list.go, auth.go, regexp.go, guard.go), the settings of
// clusters and operators for the process (global.go, base.go), the files that
// objects bring (extra.go, pair.go, part.go), and the conditions of routes
// (choice.go). Outside of a round, vet.go and blame.go ask HAProxy's program about
// texts and configurations, notices.go hears what HAProxy's checks find, and
// master.go speaks to HAProxy's master process.
package haproxy
