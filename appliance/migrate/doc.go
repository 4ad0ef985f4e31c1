// Package migrate says what becomes of Ingresses that were written for another controller, before
// anything is installed.
//
// It owns the way to the objects: files, or a cluster that it only reads. Package ingress compiles them
// as the appliance does, and makes the [survey.Survey] of the result. So a Report cannot promise what
// the appliance does not do.
//
// It changes nothing, neither here nor in a cluster.
//
// Its limit: objects that files name and do not have are taken to be good ([manifest.Assumed]).
package migrate
