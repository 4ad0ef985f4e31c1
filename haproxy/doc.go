// Package haproxy owns one HAProxy: its files, its process, and the belief about its running
// worker.
//
// It alone knows how a Config becomes HAProxy's text, which changes take a command and which a
// reload, and how the versions differ.
//
// HAProxy reads its files only when it starts and when it reloads, so the package writes them
// before. At any other time a change goes to the worker by commands, and to no file. The cost of
// such a change does not grow with the configuration. Two process variables in haproxy.cfg identify
// the files that a worker has loaded: proc.gen all files, and proc.shape the parts that only a
// reload changes. If the routes or certificates of a worker are newer than the files, its proc.gen
// is "ahead". A fresh process therefore finds out by reading, and without a reload, how a running
// HAProxy differs from its Config. It reads the servers from the worker. It reads the routes from
// the files if the worker has loaded these, and otherwise from the worker. The next Apply repairs
// everything that a crash has left behind, on whichever line it happened.
//
// In mode external another program decides when HAProxy reads the files. In that mode each change
// goes to the files first, and is undone in the files if HAProxy rejects it.
//
// HAProxy starts only from files that this process has written and HAProxy has checked. Files that
// the process finds may be from an earlier process that ended before HAProxy accepted them, or from
// somebody else who can write to the disk. If no HAProxy runs, the process therefore waits for the
// first Apply.
//
// The package promises:
//
//   - A server is Open in the worker only if a call of Apply has opened it.
//   - Endpoints, routes and certificates change without a reload. New backends of known settings
//     come without a reload, before HAProxy 3.4 only while spare backends last.
//   - A reload drops no request and forgets no rate limit. Routes that wait for a reload lead to
//     their former backends until then.
//   - Nothing counts as done before the worker has confirmed it.
//   - Blame names the part of a configuration that HAProxy rejects.
//
// Its limits:
//
//   - It manages one HAProxy for each configuration directory.
//   - A worker that somebody else starts from the files (mode external) opens the servers that are
//     open in the files. If HAProxy's program is missing here, nobody checks these files before.
//   - If somebody else reloads our own HAProxy, the new worker runs an older state until Run
//     notices it after 0.2 s.
//   - A HAProxy 2.6 that is reloaded within 5 s of its start forgets its rate limits.
//
// HAProxy since 3.4 adds and removes a backend by command ("add backend"). The new backend takes
// its settings from a section of defaults that HAProxy has loaded. A backend still takes a reload
// in these cases:
//
//   - No backend of the same settings existed when HAProxy read the files.
//   - 64 other kinds of settings were more frequent then.
//   - A user wrote lines of the section.
//   - It captures headers for the log, which defaults cannot do.
//   - It has a port of its own, or a condition of routes names it, because the frontend contains
//     its name.
//   - It has servers, and its settings change.
//   - Half a minute after its removal a request is still in progress in it. Until then HAProxy
//     keeps the backend.
//
// A round, which is one call of Apply, walks through the files from top to bottom:
//
//	apply.go      the round; everything below is called from here
//	validate.go   can all of the Config be written for HAProxy?              pure
//	process.go    find HAProxy's process, or start it from checked files
//	proxy.go      know: read the worker if there is no belief about it
//	belief.go     the configuration that HAProxy was told, and those of the
//	              files and of the worker                                    pure
//	render.go     the contents of all files: head.go, frontend.go,
//	              backend.go, map.go; gateway.go and scope.go for Listeners  pure
//	class.go      sections of the files for backends that come later         pure
//	placing.go    places for backends that the worker has not loaded: the
//	              round calls this file, and not the next two
//	spare.go      HAProxy before 3.4: spare backends stand for them          pure
//	grow.go       HAProxy since 3.4: commands add and remove backends
//	former.go     where routes lead as long as their new backends wait       pure
//	schedule.go   when may the next reload come? cause.go says who asks for
//	              it, and budget.go how many each tenant may cause           pure
//	reload.go     is a reload needed, and due? Then write, check, reload
//	disk.go       write the files for a start or a reload
//	orders.go     compare the worker with the text: the commands             pure
//	worker.go     send the commands, and read the state of the worker
//
// A pure file turns values into values, and touches neither disk nor socket. The files that
// describe a Config are also pure:
//
//	config.go                    the Config
//	directive.go, format.go, text.go, list.go, auth.go, fcgi.go, regexp.go, guard.go
//	                             the rules of backends
//	global.go, base.go           settings of clusters and operators for the process
//	extra.go, pair.go, part.go   files that objects bring
//	group.go, ticket.go          data that the HAProxys of a group share
//	choice.go                    the conditions of routes
//	listener.go, target.go, pick.go, rewrite.go
//	                             listeners with routes of their own, shares, conditions and
//	                             redirects, for Gateways
//
// Outside of a round, vet.go and blame.go ask HAProxy's program about texts and configurations,
// notices.go receives the results of HAProxy's checks, and master.go speaks to HAProxy's master
// process.
//
// The package is larger than the others for one reason: its types Directive, Text and Line have no
// exported fields. Only functions in here make a line of HAProxy's configuration, so no value from a
// cluster becomes a line by mistake. Two packages would need these fields exported.
package haproxy
