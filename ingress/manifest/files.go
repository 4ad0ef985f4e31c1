package manifest

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ReadPath adds the objects of a file, or of the files of a folder with names that end in .yaml, .yml or
// .json. If recursive is true, it also reads the folders below, except those with a name that begins with
// a dot. An error says that the path itself cannot be read.
func (c *Contents) ReadPath(path string, recursive bool) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return c.readFile(path)
	}
	return filepath.WalkDir(path, func(at string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && at == path:
			return err
		case err != nil:
			c.unread(at, "%v", err)
			return nil
		case d.IsDir():
			if at != path && (!recursive || strings.HasPrefix(d.Name(), ".")) {
				return fs.SkipDir
			}
			return nil
		}
		switch filepath.Ext(at) {
		case ".yaml", ".yml", ".json":
			if err := c.readFile(at); err != nil {
				c.unread(at, "%v", err)
			}
		}
		return nil
	})
}

func (c *Contents) readFile(path string) error {
	f, err := os.Open(path) //nolint:gosec // the user names it
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	c.Read(path, f)
	return nil
}
