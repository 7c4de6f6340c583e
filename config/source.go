package config

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Connect returns the settings of an ordinary connection. It reads the password
// file and the certificates anew, so it is called for every connection. Errors
// show no part of the connection string.
func (s Source) Connect() (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(s.connString())
	if err != nil {
		return nil, s.explain(err)
	}
	switch {
	case s.PasswordFile != "":
		b, err := os.ReadFile(s.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("read source.password_file: %w", err)
		}
		cfg.Password = strings.TrimRight(string(b), "\r\n")
	case s.Password != "" && !urlGives(s.URL, "password"):
		cfg.Password = s.Password
	}
	return cfg, nil
}

// CheckTarget is for commands that connect: the database is named somewhere, here
// or by a PG* variable. Its error is of type Problems.
func (s Source) CheckTarget() error {
	if cfg, err := s.Connect(); err == nil && cfg.Database != "" {
		return nil
	} else if err != nil {
		return Problems{{Key: "source", Message: err.Error()}}
	}
	return Problems{{Key: "source.database", Message: "is not set; set it, source.url or PGDATABASE"}}
}

// Addresses returns where Connect leads, in the order in which it is tried:
// host:port, or the path of a Unix socket.
func (s Source) Addresses() ([]string, error) {
	cfg, err := s.Connect()
	if err != nil {
		return nil, err
	}
	var out []string
	add := func(host string, port uint16) {
		if _, address := pgconn.NetworkAddress(host, port); !slices.Contains(out, address) {
			out = append(out, address)
		}
	}
	add(cfg.Host, cfg.Port)
	for _, f := range cfg.Fallbacks {
		add(f.Host, f.Port)
	}
	return out, nil
}

// explain drops the connection string, and fragments of it, from pgx's error.
func (s Source) explain(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path
	}
	var parse *pgconn.ParseConfigError
	if s.URL == "" && errors.As(err, &parse) && parse.Unwrap() != nil {
		return parse.Unwrap()
	}
	if isURL(s.URL) {
		return errors.New("is not a valid connection URL, as postgres://user@host:5432/database; special characters in user and password must be percent-encoded")
	}
	return errors.New("the connection settings do not fit together; a connection string is a URL, as postgres://user@host:5432/database, or pairs, as host=db1 dbname=shop")
}

func isURL(s string) bool {
	return strings.HasPrefix(s, "postgres://") || strings.HasPrefix(s, "postgresql://")
}

// connString returns the URL, with the keys that it leaves out filled in. The
// password is not among them: Connect sets it.
func (s Source) connString() string {
	port := ""
	if s.Port != 0 {
		port = strconv.Itoa(s.Port)
	}
	pairs := [][2]string{
		{"host", s.Host}, {"port", port}, {"dbname", s.Database}, {"user", s.User}, {"sslmode", s.SSLMode},
		{"sslrootcert", s.SSLRootCert}, {"sslcert", s.SSLCert}, {"sslkey", s.SSLKey},
	}
	var b strings.Builder
	for _, p := range pairs {
		if p[1] == "" || urlGives(s.URL, p[0]) {
			continue
		}
		if isURL(s.URL) {
			b.WriteString("&" + p[0] + "=" + percentEncode(p[1]))
		} else {
			b.WriteString(p[0] + "='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(p[1]) + "' ")
		}
	}
	if !isURL(s.URL) {
		return b.String() + s.URL
	}
	extra := b.String()
	if extra == "" {
		return s.URL
	}
	sep := "?"
	switch {
	case strings.HasSuffix(s.URL, "?"), strings.HasSuffix(s.URL, "&"):
		sep = ""
	case strings.Contains(s.URL, "?"):
		sep = "&"
	}
	return s.URL + sep + extra[1:]
}

// percentEncode encodes all but letters and digits: the URL's parser takes a plus
// as it is.
func percentEncode(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// urlGives reports whether a connection string gives a setting itself.
func urlGives(url, name string) bool {
	names := name
	if name == "dbname" {
		names = "dbname|database"
	}
	if !isURL(url) {
		return regexp.MustCompile(`(^|\s)(` + names + `)\s*=`).MatchString(url)
	}
	_, rest, _ := strings.Cut(url, "://")
	rest, query, _ := strings.Cut(rest, "?")
	if regexp.MustCompile(`(^|&)(` + names + `)=`).MatchString(query) {
		return true
	}
	authority, path, _ := strings.Cut(rest, "/")
	user, host := "", authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, host = authority[:i], authority[i+1:]
	}
	switch name {
	case "user":
		u, _, _ := strings.Cut(user, ":")
		return u != ""
	case "password":
		_, p, _ := strings.Cut(user, ":")
		return p != ""
	case "host":
		return host != "" && !strings.HasPrefix(host, ":")
	case "port":
		return regexp.MustCompile(`:\d`).MatchString(host[strings.LastIndexByte(host, ']')+1:])
	case "dbname":
		return path != ""
	}
	return false
}
