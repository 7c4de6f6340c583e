// Package page is the picture of the whole path, for a browser: HTML, CSS and JavaScript modules as they are written,
// without a build step. It shows what the engine under /api/ of the same server tells it, and asks nobody else.
package page

import (
	"embed"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

//go:embed files
var embedded embed.FS

// Nothing but this server's own files runs or is asked; text from outside cannot become markup, since the browser
// refuses the ways to make it so.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Not by the table of the machine: one without a type for .js would serve a page that no browser runs.
var types = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// Handler serves the page under GET / and its files under GET /page/; every other path is not found.
func Handler() http.Handler {
	files, err := fs.Sub(embedded, "files")
	if err != nil {
		panic(err) // the directory is embedded
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "the page is only read", http.StatusMethodNotAllowed)
			return
		}
		name, ok := strings.CutPrefix(r.URL.Path, "/page/")
		if r.URL.Path == "/" {
			name, ok = "index.html", true
		}
		kind := types[path.Ext(name)]
		content, err := fs.ReadFile(files, name)
		if !ok || err != nil || kind == "" {
			http.NotFound(w, r)
			return
		}
		h := w.Header()
		h.Set("Content-Type", kind)
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-cache") // not no-store, with which the browser keeps no page to go back to
		if r.Method == http.MethodGet {
			_, _ = w.Write(content) // the browser has gone
		}
	})
}
