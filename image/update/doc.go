// Package update replaces the version that runs on the bootable image. It is the
// boundary of trust in what a server or a stick offers as a version.
//
// It owns the files of versions on the EFI system partition. It alone knows their
// names, the keys and the manifests. It promises that a file gets a name that the
// boot loader starts only after a key in this image vouched for its digest; that
// the version that runs stays; and that no version is removed before the one that
// runs has been ready.
//
// Its limit: it does not decide when a version is ready. A unit of the image waits
// for that, and calls Bless. systemd-boot counts the starts, and goes back.
package update
