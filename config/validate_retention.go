package config

import (
	"strings"
	"time"
)

// shortestRetention keeps rows long enough for a person to look at them.
const shortestRetention = time.Second

func (v *validator) retention(c Config) {
	r := c.Retention
	v.oneOf("retention.mode", r.Mode, "none", "delete", "drop_partitions")
	v.check(r.After >= shortestRetention, "retention.after", "%s must be at least %s", r.After, shortestRetention)
	v.positive("retention.interval", r.Interval)
	v.check(r.BatchRows >= 1 && r.BatchRows <= 100_000, "retention.batch_rows", "%d is out of range; use 1 to 100000", r.BatchRows)
	v.check(r.BatchPause >= 0, "retention.batch_pause", "%s must not be negative", r.BatchPause)
	v.check(r.LockTimeout >= time.Millisecond, "retention.lock_timeout", "%s must be at least 1ms", r.LockTimeout)
	if r.Column != "" {
		if err := checkIdentifier(r.Column); err != nil {
			v.fail("retention.column", "%v", err)
		}
	}
	v.partitions(r)
	if !r.On() {
		return
	}
	v.check(c.Sink != "null", "retention.mode", "%s with sink: null would delete rows that were never published", r.Mode)
	for i, o := range c.Outbox {
		v.check(r.Column != "" || o.Columns.Timestamp != "", "retention.column",
			"needed with retention.mode: %s: nothing tells the age of a row in %s (outbox[%d]); name a column, or map outbox[%d].columns.timestamp", r.Mode, o.Table, i, i)
	}
}

// mostAhead bounds how many partitions a table has that nothing is in yet.
const mostAhead = 1000

func (v *validator) partitions(r Retention) {
	v.check(r.PartitionInterval == 0 || r.PartitionInterval >= time.Second && r.PartitionInterval%time.Second == 0, "retention.partition_interval",
		"%s must be whole seconds, or 0s, which makes none", r.PartitionInterval)
	v.check(r.PartitionAhead >= 1 && r.PartitionAhead <= mostAhead, "retention.partition_ahead", "%d is out of range; use 1 to %d", r.PartitionAhead, mostAhead)
	if !strings.Contains(r.PartitionName, "{from}") {
		v.fail("retention.partition_name", "%q must have {from} in it, or all partitions would have one name", r.PartitionName)
	}
	if err := checkIdentifier(strings.NewReplacer("{table}", "t", "{from}", "20060102").Replace(r.PartitionName)); err != nil {
		v.fail("retention.partition_name", "%v", err)
	}
}

// On tells whether anything is deleted.
func (r Retention) On() bool { return r.Mode == "delete" || r.DropsPartitions() }

// DropsPartitions tells whether whole partitions are dropped.
func (r Retention) DropsPartitions() bool { return r.Mode == "drop_partitions" }

// AgeColumns are the columns that tell a row's age, one for each outbox table.
func (c Config) AgeColumns() []string {
	var columns []string
	for _, o := range c.Outbox {
		column := c.Retention.Column
		if column == "" {
			column = o.Columns.Timestamp
		}
		columns = append(columns, column)
	}
	return columns
}
