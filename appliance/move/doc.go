// Package move makes a configuration file of the files that people have: those of BIRD, of
// keepalived, and of HAProxy's own ingress controller.
//
// It owns the parsers of these files, and the words about each statement that is widened, changed or
// not carried. It alone knows which key stands for which statement.
//
// The result has only what package config accepts: a setting that config rejects is left out, with
// config's own words. No secret is in the result. A key for it names a file instead, and a remark
// names the line to copy the secret from.
//
// Its limit: it knows nothing of a cluster. Whether an address is that of a node, and which networks
// the pods have, is for the reader of the remarks.
package move
