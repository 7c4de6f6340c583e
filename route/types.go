package route

import "fmt"

// Role is what a column is mapped to.
type Role uint8

const (
	RoleID Role = iota
	RoleKey
	RoleType
	RolePayload
	RoleTopic // the topic column, or one in the topic's template
	RoleTimestamp
	RolePartition
	RoleHeader
	RoleAggregate // named in the formats other than raw
)

// String returns the role as the configuration calls it.
func (r Role) String() string {
	switch r {
	case RoleID:
		return "id"
	case RoleKey:
		return "key"
	case RoleType:
		return "type"
	case RolePayload:
		return "payload"
	case RoleTopic:
		return "topic"
	case RoleTimestamp:
		return "timestamp"
	case RolePartition:
		return "partition"
	case RoleHeader:
		return "header"
	case RoleAggregate:
		return "aggregate"
	default:
		return "unknown role"
	}
}

// OIDs of the built-in types that are read beyond their text.
const (
	oidBytea       = 17
	oidInt8        = 20
	oidInt2        = 21
	oidInt4        = 23
	oidJSON        = 114
	oidDate        = 1082
	oidTimestamp   = 1114
	oidTimestampTZ = 1184
	oidJSONB       = 3802
)

// UsableType tells whether a column of the type can have the role. For a domain,
// ask with its base type.
func UsableType(role Role, typeOID uint32) bool {
	switch role {
	case RoleTopic:
		return typeOID != oidBytea
	case RoleTimestamp:
		switch typeOID {
		case oidTimestampTZ, oidTimestamp, oidDate, oidInt8, oidInt4:
			return true
		}
		return false
	case RolePartition:
		switch typeOID {
		case oidInt2, oidInt4, oidInt8:
			return true
		}
		return false
	default:
		return true
	}
}

// Accepts names the types that UsableType allows, for a person.
func (r Role) Accepts() string {
	switch r {
	case RoleTopic:
		return "any type but bytea"
	case RoleTimestamp:
		return "timestamptz, timestamp (read as UTC), date (its midnight in UTC), or bigint or integer (milliseconds since 1970)"
	case RolePartition:
		return "smallint, integer or bigint"
	default:
		return "any type"
	}
}

// Takes tells whether a column of the type can have the role in the table, whose
// format may refuse what others take: where it needs text, there can be no bytea.
func (t Table) Takes(role Role, typeOID uint32) (ok bool, accepts string) {
	if !UsableType(role, typeOID) {
		return false, role.Accepts()
	}
	if typeOID != oidBytea || t.raw() {
		return true, role.Accepts()
	}
	switch role {
	case RoleID, RoleKey, RoleType, RoleAggregate:
	case RoleHeader:
		if !t.cloudEvents() {
			return true, role.Accepts()
		}
	default:
		return true, role.Accepts()
	}
	return false, fmt.Sprintf("any type but bytea with the format %s", t.Format)
}
