// Package manifest owns Snapshots without a cluster: it reads the objects of a cluster from YAML and
// JSON, as `kubectl get -o yaml` prints them and charts render them.
//
// It alone knows the forms of such files: several documents, Lists, other kinds, templates that nobody
// rendered. It promises that no content of a file ends the reading of the other files. It lists each
// object that cannot be read ([Contents].Unread), and each object that it takes to exist ([Assumed]).
//
// Its limit: it reads no file of a cluster that needs a program, as templates of Helm and
// kustomizations do. A document may have 32 MiB.
package manifest
