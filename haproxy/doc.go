// Package haproxy owns one HAProxy: its files, its process, and the belief about
// its running worker.
//
// It alone knows how a Config becomes HAProxy's text, which changes take a command
// and which a reload, and how the versions differ.
//
// HAProxy reads its files when it starts and when it reloads, and at no other time. So
// that is when they have to be right: they are written before. In between, a change goes
// to the worker by commands and to no file, and what it costs does not grow with the
// configuration. Two process variables in haproxy.cfg name the files that a worker has
// loaded: proc.gen all of them, proc.shape the part that only a reload changes. A worker
// whose routes or certificates have changed since is "ahead". So a fresh process learns
// by reading, not by reloading, how far a running HAProxy is from what it should be: the
// servers it always reads from the worker, the routes from the files of the worker's
// generation, or else from the worker. A crash on any line leaves nothing that the next
// Apply does not see.
//
// With mode external somebody else decides when HAProxy reads the files. There each
// change goes to the files first, and the files lose again what HAProxy rejects.
//
// HAProxy starts only from files that this process has written and HAProxy has
// checked. Files that the process finds may come from a life that ended before
// HAProxy accepted them, or from somebody else who can write to the disk. So a
// process that finds no HAProxy running waits for the first Apply.
//
// It promises: a server is Open in the worker only if a call of Apply said so;
// endpoints, routes and certificates change without a reload, and new backends of known
// settings come without one (before 3.4 while spare places last); a reload drops no request
// and forgets no rate limit, and what waits for one is served as before; nothing counts as
// done before the worker has confirmed it; Blame names the part of a configuration that HAProxy rejects.
//
// Its limits: one HAProxy per configuration directory; a worker that an outsider
// starts from the files (mode external) opens the servers that are open in them,
// and without HAProxy's program here nobody checks them before; a worker that somebody
// orders from our own HAProxy runs older states until Run notices it, after 0.2 s; a
// HAProxy 2.6 that is reloaded within 5 s of its start forgets its rate limits.
//
// HAProxy since 3.4 adds a backend by command ("add backend"), and removes it. It takes the
// settings from a section of defaults that it has loaded. So a new backend takes a reload
// all the same if no backend of the same settings was there when HAProxy read the files, if
// 64 other kinds of settings were more frequent, if a user wrote lines of the section, or if
// it captures headers for the log, which defaults cannot have. A port of its own takes a
// reload, too, as does a backend that a condition of routes names: the frontend has its name.
// Settings of a backend that has servers change by a reload. HAProxy removes no backend in
// which a request is under way; if it still is after half a minute, a reload removes the
// backend.
//
// A round, which is one call of Apply, walks through the files from top to bottom:
//
//	apply.go      the round; everything below is called from here
//	validate.go   can all of the Config be written for HAProxy?              pure
//	process.go    find HAProxy's process, or start it from checked files
//	proxy.go      know: read the worker if the belief about it is gone
//	belief.go     what HAProxy was told, what the files have, and what the
//	              worker runs                                                pure
//	render.go     what all files come to: head.go, frontend.go, backend.go,
//	              map.go                                                     pure
//	class.go      what the files have for backends that come later          pure
//	placing.go    places for backends that the worker has not loaded: the
//	              round sees this alone
//	spare.go      HAProxy before 3.4: spare backends stand for them          pure
//	grow.go       HAProxy since 3.4: backends come and go by command
//	former.go     where routes lead as long as their new backends wait       pure
//	schedule.go   when may the next reload come? cause.go says who asks for
//	              it, and budget.go how many each tenant may cause           pure
//	reload.go     is a reload needed, and due? Then write, check, reload
//	disk.go       write the files, for that
//	orders.go     compare the worker with the text: the commands             pure
//	worker.go     send the commands, and read what the worker has
//
// A pure file turns values into values, and touches neither disk nor socket. Pure
// too are the files that describe a Config: config.go, the rules of backends
// (directive.go, format.go, text.go, list.go, auth.go, regexp.go, guard.go), the
// settings of clusters and operators for the process (global.go, base.go), the files that
// objects bring (extra.go, pair.go, part.go), what one HAProxy takes over from another
// (group.go, ticket.go), and the conditions of routes (choice.go). Outside of a round,
// vet.go and blame.go ask HAProxy's program about texts and configurations, notices.go
// hears what HAProxy's checks find, and master.go speaks to HAProxy's master process.
package haproxy
