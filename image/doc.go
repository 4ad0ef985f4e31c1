// Package image makes a whole machine of the one file, in the bootable image: its addresses, its
// firewall and its consoles. Package update replaces its version.
//
// It owns /run/sallyport-image and /var/lib/sallyport/image, and the files in systemd's folders
// that have its prefix in their names. It alone knows where the file may come from, and which
// source was used. It promises to check a file whole before it changes anything: a bad file changes
// nothing, and the last good file stays in use. The machine's configuration is a pure function of
// that file.
//
// Its limit: it serves no traffic. It only checks what the file says about clusters, BGP and
// HAProxy; the process reads the file again. It sees the process from outside, by its status
// endpoint.
package image
