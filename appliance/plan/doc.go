// Package plan keeps the promise of Sallyport as a pure function: from the wanted state
// (Want) and the actual state (Have) it names the steps that are safe now (Plan).
//
// It owns these states, the kinds of steps, and the argument why every subset of the
// steps, in any order, sends no packet of an open server another way. It alone knows when
// a server may be open, when a route may change, and which connections a change or a dead
// node leaves without an answer (Stranded, Doubt).
//
// It promises that three rounds of planning and taking all steps settle any state that
// nobody else changes, and that its memory (Planner) changes no step.
//
// Its limit: it reads and writes nothing. The caller reads both states, takes the steps,
// and plans again.
package plan
