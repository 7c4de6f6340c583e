package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Header is the header of a request that carries the key.
const Header = "Idempotency-Key"

const maxKey = 255 // bytes

var (
	errNoKey  = errors.New("the header " + Header + " is missing")
	errBadKey = errors.New("the header " + Header + ` must hold one key of 1 to 255 printable ASCII characters, as in "8e03978e-40d5-43dd-bc93-6894a57f9324"`)
)

// keyOf reads the header: a string of RFC 9651, or the same text without its quotes,
// as many clients send it; both are the same key.
func keyOf(h http.Header) (string, error) {
	values := h.Values(Header)
	if len(values) == 0 {
		return "", errNoKey
	}
	v := strings.Trim(values[0], " \t")
	if len(values) > 1 {
		return "", errBadKey
	}
	key, ok := v, !strings.ContainsAny(v, `",;\ `)
	if strings.HasPrefix(v, `"`) {
		key, ok = unquote(v)
	}
	if !ok || key == "" || len(key) > maxKey {
		return "", errBadKey
	}
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return "", errBadKey
		}
	}
	return key, nil
}

// unquote reads a string of RFC 9651, without parameters behind it.
func unquote(v string) (string, bool) {
	if len(v) < 2 || v[len(v)-1] != '"' {
		return "", false
	}
	var b strings.Builder
	for in := v[1 : len(v)-1]; in != ""; in = in[1:] {
		switch in[0] {
		case '"':
			return "", false
		case '\\':
			if in = in[1:]; in == "" || in[0] != '"' && in[0] != '\\' {
				return "", false
			}
		}
		b.WriteByte(in[0])
	}
	return b.String(), true
}

// readBody reads all of it, before a transaction is begun: a slow client must not
// hold one.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		return nil, fmt.Errorf("read the body of a request: %w", err)
	}
	return body, nil
}

// withBody returns the request with its body unread.
func withBody(r *http.Request, body []byte) *http.Request {
	again := r.WithContext(r.Context())
	again.Body = http.NoBody
	if len(body) > 0 {
		again.Body = io.NopCloser(bytes.NewReader(body))
	}
	again.ContentLength = int64(len(body))
	return again
}

// fingerprint tells requests of one key apart.
func fingerprint(r *http.Request, body []byte) []byte {
	sum := sha256.Sum256(body)
	return digest(r.Method, r.URL.EscapedPath(), r.URL.RawQuery, r.Header.Get("Content-Type"), string(sum[:]))
}

// digest is the SHA-256 of texts and their lengths, so that no two lists are alike.
func digest(texts ...string) []byte {
	h := sha256.New()
	for _, text := range texts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(text)))
		h.Write(n[:])
		h.Write([]byte(text))
	}
	return h.Sum(nil)
}
