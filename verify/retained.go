package verify

import (
	"math"
	"time"
)

const (
	// clockSlack is by how much the brokers' clocks may differ from this one.
	clockSlack = 5 * time.Minute
	// orderSlack is by how much later than its neighbours a record may carry its
	// time: the time of a mapped column is often that of its transaction's
	// beginning, and records lie in the order of commits.
	orderSlack = time.Hour
)

// Topic is what a topic still holds, as far as it matters to whether a record
// that is not there ever was.
type Topic struct {
	Name    string
	Missing bool // it does not exist
	// SettingsErr is why the settings below it are not known.
	SettingsErr error
	Compacted   bool
	Retention   time.Duration // by time; negative: without limit
	BySize      bool          // old records are removed by size as well
	Partitions  []Partition
}

// Partition is what was read of a partition.
type Partition struct {
	ID       int32
	First    int64 // offset of the first record that was retained
	End      int64 // one past the last that was read
	Earliest int64 // time of the first record that was read; unknownTime when there was none
}

// Records is how many offsets the partitions span.
func (t *Topic) Records() (n int64) {
	for _, p := range t.Partitions {
		n += p.End - p.First
	}
	return n
}

// absent says what it means that a row with this time has no record. The row's
// partition is not known, since its key is not read: when the record may have
// been removed from any partition, it may have been removed.
func (t *Topic) absent(rowTime int64, now time.Time) (Kind, string) {
	if t.Missing {
		return Missing, "the topic does not exist"
	}
	if t.Compacted {
		return Compacted, "the topic is compacted: a later record of the same key may have replaced it"
	}
	cutoff, removed := t.removedBefore()
	if !removed {
		return Missing, ""
	}
	if rowTime == unknownTime {
		return Expired, "old records were removed from the topic, and the time of the row is not known"
	}
	if t.SettingsErr == nil && !t.BySize && t.Retention >= 0 {
		// A partition that is seldom written may have lost its last record, which tells
		// nothing of when; by time alone nothing younger than this is removed.
		cutoff = min(cutoff, now.Add(-t.Retention).Add(clockSlack).UnixMilli())
	}
	if rowTime <= cutoff {
		return Expired, "records as old as it were removed from the topic"
	}
	return Missing, ""
}

// removedBefore is the time up to which a record may have been removed from the
// log's beginning; false when nothing was.
func (t *Topic) removedBefore() (cutoff int64, removed bool) {
	cutoff = math.MinInt64
	for _, p := range t.Partitions {
		switch {
		case p.First == 0:
			continue
		case p.Earliest == unknownTime:
			cutoff = math.MaxInt64
		default:
			cutoff = max(cutoff, p.Earliest+orderSlack.Milliseconds())
		}
		removed = true
	}
	return cutoff, removed
}
