package config

import "time"

// shortestRetention keeps rows long enough for a person to look at them.
const shortestRetention = time.Second

func (v *validator) retention(c Config) {
	r := c.Retention
	v.oneOf("retention.mode", r.Mode, "none", "delete")
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
	if r.Mode != "delete" {
		return
	}
	v.check(c.Sink != "null", "retention.mode", "delete with sink: null would delete rows that were never published")
	for i, o := range c.Outbox {
		v.check(r.Column != "" || o.Columns.Timestamp != "", "retention.column",
			"needed with retention.mode: delete: nothing tells the age of a row in %s (outbox[%d]); name a column, or map outbox[%d].columns.timestamp", o.Table, i, i)
	}
}

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
