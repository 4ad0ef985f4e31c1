package image

// HowTo says how to give a machine its file.
const HowTo = `This machine needs one file, sallyport.yaml, and has none that it can use.
Write one after the example that "sallyport config example" prints, with the
kubeconfig itself in it, and give it in one of these ways:

 - put it on the partition labelled CONFIG of this machine's disk, or of a stick
   (FAT; any laptop can write it)
 - as the systemd credential sallyport.yaml, by SMBIOS type 11 or QEMU's fw_cfg
 - as guestinfo.sallyport.yaml, on VMware (plain, base64, or base64 of gzip)
 - as user-data or sallyport.yaml of a NoCloud seed, labelled CIDATA

It is looked for at each start, and every 30 seconds.
`
