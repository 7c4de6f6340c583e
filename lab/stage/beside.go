package stage

import (
	"os"
	"path/filepath"
)

// Beside is a binary in the directory of this program; "" where there is none, and
// Start builds it.
func Beside(name string) string {
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	path := filepath.Join(filepath.Dir(self), name)
	if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() {
		return ""
	}
	return path
}
