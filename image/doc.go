// Package image makes a whole machine of the one file, in the bootable image:
// its addresses, its firewall, its consoles, its updates.
//
// It owns what is in /run/sallyport-image and /var/lib/sallyport/image, and the
// files that systemd's own services read there on our account. It alone knows by
// which ways the file arrives, and which one was taken. It promises that a file
// is checked whole before anything is made of it: a bad one changes nothing, and
// the last good one is used on. What the machine is to be is a pure function of
// that file.
//
// Its limit: it serves nothing itself. What the file says of clusters, BGP and
// HAProxy it only checks; the process reads it again. It looks at the process from
// outside, at its status endpoint.
package image
