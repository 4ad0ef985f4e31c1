// Package picture keeps the last good objects of each cluster on disk, so that a start
// without the API serves what was served before.
//
// It owns the files picture-CLUSTER.json and picture-CLUSTER.json.updates of the state
// directory. It alone knows their format, how large a picture may become, and which
// namespaces it leaves out because they are too large (LeftOut). A picture holds the keys of
// certificates, so its file has mode 0600.
//
// It promises that after a crash the file has either the old picture or the new picture. A picture
// that could not be loaded never replaces a picture that can be loaded. An object that crashes the
// process within Interval is never saved. The bytes that it writes for one change do not depend on
// the size of the cluster: a whole picture at each change would be too much for the disk, and a
// seldom one would lead to addresses that other pods have since.
//
// Its limit: a crash loses the changes of the last seconds. The API reports them again at the
// next start, unless it is unreachable then.
package picture
