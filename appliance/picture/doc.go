// Package picture keeps the last good objects of each cluster on disk, so that a start
// without the API serves what was served before.
//
// It owns the files picture-CLUSTER.json and picture-CLUSTER.json.updates of the state
// directory. It alone knows their format, how large a picture may become, and which
// namespaces it leaves out because they are too large (LeftOut). A picture holds the keys of
// certificates, so its file has mode 0600.
//
// It promises that a crash leaves the old picture or the new one, that a picture which could
// not be loaded never replaces one that can, and that what ends the process within Interval
// is never saved. What one change writes does not depend on the size of the cluster.
//
// Its limit: a crash loses the changes of the last seconds. The API reports them again at the
// next start, unless it is unreachable then.
package picture
