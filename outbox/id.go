package outbox

import (
	"crypto/rand"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"time"
)

// KeyNamespace is the namespace of KeyID.
const KeyNamespace = "59f7c876-7c5e-44e3-812e-f5400b114602"

// KeyID returns the id of an event with an idempotency key: the UUID of version 5 of
// KeyNamespace and the key, which every language can make
// (uuid_generate_v5('59f7c876-7c5e-44e3-812e-f5400b114602', key) in PostgreSQL).
func KeyID(key string) string {
	namespace, err := hex.DecodeString(strings.ReplaceAll(KeyNamespace, "-", ""))
	if err != nil {
		panic(err) // a constant
	}
	sum := sha1.Sum(append(namespace, key...))
	return format(5, [16]byte(sum[:16]))
}

// newID returns a UUID of version 7: milliseconds since 1970, then chance. Ids that
// are made one after the other lie side by side in the index.
func newID(now time.Time) string {
	var b [16]byte
	_, _ = rand.Read(b[6:]) // never fails
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(now.UnixMilli()))
	copy(b[:6], ms[2:])
	return format(7, b)
}

// format sets version and variant.
func format(version byte, b [16]byte) string {
	b[6] = b[6]&0x0F | version<<4
	b[8] = b[8]&0x3F | 0x80
	s := hex.EncodeToString(b[:])
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

// canonical returns a UUID as PostgreSQL prints it; false for what is none.
func canonical(id string) (string, bool) {
	if len(id) != 36 {
		return "", false
	}
	for i := range len(id) {
		c := id[i]
		switch {
		case i == 8, i == 13, i == 18, i == 23:
			if c != '-' {
				return "", false
			}
		case '0' <= c && c <= '9', 'a' <= c && c <= 'f', 'A' <= c && c <= 'F':
		default:
			return "", false
		}
	}
	return strings.ToLower(id), true
}
