package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cdc-relay/cdc-relay/bench/load"
	"github.com/cdc-relay/cdc-relay/bench/rig"
)

// costRate is the rate at which the cost to the database is measured.
const costRate = 1000

// cost is a steady load of which the database's own work is measured. Vacuum is off, so that what it would have to do is seen.
type cost struct{ steady }

func costGroups(o options) []*group {
	c := &cost{*newSteady(o, costRate)}
	c.warmRows, c.rows = 0, c.seconds*costRate
	return []*group{{scenario: "cost", variant: strconv.Itoa(costRate), rounds: o.slowRounds, slowRounds: o.slowRounds, open: c.open,
		params: fmt.Sprintf("seconds=%d bytes=%d pg=%s", o.seconds, steadySize, o.pg),
		systems: []*system{
			{name: "inserts", run: c.around("outbox", c.byInserts)},
			{name: "relay", run: c.around("outbox", c.byRelay), missing: c.noKafka},
			{name: "polling", run: c.around(rig.PollingTable, c.byPolling), missing: c.noKafka},
		}}}
}

func (c *cost) open(ctx context.Context, env *rig.Env) (func(), error) {
	settings := map[string]string{"autovacuum": "off"}
	for k, v := range rig.SteadySettings {
		settings[k] = v
	}
	r, err := env.NewRig(ctx, c.pg, settings)
	if err != nil {
		return nil, err
	}
	c.Rig = r
	if err := errors.Join(r.DropSlot(ctx, rig.Slot), r.CreatePollingTable(ctx)); err != nil {
		r.Close()
		return nil, err
	}
	return r.Close, nil
}

// around measures what a run adds to the WAL, and what is left of the table.
func (c *cost) around(table string, run func(context.Context, int) (outcome, error)) func(context.Context, int) (outcome, error) {
	return func(ctx context.Context, n int) (outcome, error) {
		const wal = "pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
		before, err := c.Number(ctx, "SELECT "+wal)
		if err != nil {
			return outcome{}, fatalError{err}
		}
		rows, err := c.rowCounts(ctx, table)
		if err != nil {
			return outcome{}, fatalError{err}
		}
		out, err := run(ctx, n)
		if err != nil {
			return outcome{}, err
		}
		after, err := c.Number(ctx, "SELECT "+wal)
		if err != nil {
			return outcome{}, fatalError{err}
		}
		size, err := c.Number(ctx, "SELECT pg_total_relation_size('"+table+"')")
		if err != nil {
			return outcome{}, fatalError{err}
		}
		dead, err := c.deadRows(ctx, table, rows)
		if err != nil {
			return outcome{}, err
		}
		million := float64(c.rows) / 1e6
		out.figures["wal_mb_per_million"] = (after - before) / 1e6 / million
		out.figures["table_mb_per_million"] = size / 1e6 / million
		out.figures["dead_per_million"] = dead / million
		return out, nil
	}
}

// rowCounts are cumulative: rows that were written to a table, and rows of which an older version was left behind.
type rowCounts struct{ written, dead float64 }

func (c *cost) rowCounts(ctx context.Context, table string) (n rowCounts, err error) {
	if n.written, err = c.Number(ctx, "SELECT n_tup_ins FROM pg_stat_user_tables WHERE relname = $1", table); err != nil {
		return n, err
	}
	n.dead, err = c.Number(ctx, "SELECT n_tup_upd + n_tup_del FROM pg_stat_user_tables WHERE relname = $1", table)
	return n, err
}

// deadRows is how many old versions a run has left. It waits until the statistics know of all rows, which sessions tell them every
// second.
func (c *cost) deadRows(ctx context.Context, table string, before rowCounts) (float64, error) {
	var dead float64
	err := rig.Poll(ctx, 20*time.Second, 200*time.Millisecond, "the statistics of "+table, func() (bool, error) {
		now, err := c.rowCounts(ctx, table)
		dead = now.dead - before.dead
		return now.written-before.written >= float64(c.rows) && (table != rig.PollingTable || dead >= float64(c.rows)), err
	})
	return dead, err
}

// byInserts is the outbox without anybody who reads it: what the application costs by itself.
func (c *cost) byInserts(ctx context.Context, _ int) (outcome, error) {
	if err := c.empty(ctx); err != nil {
		return outcome{}, err
	}
	w := load.Writer{DSN: c.DSN(), Table: "outbox", Rate: c.rate, TxRows: c.txRows, Events: c.rows, Size: steadySize, Connections: c.connections}
	ledger := load.NewLedger(c.rows)
	if err := w.Run(ctx, ledger); err != nil {
		return outcome{}, err
	}
	return outcome{figures: map[string]float64{"achieved_per_s": ledger.Since(0).PerSecond}}, nil
}

// partitionGroups: the relay at the highest rate, with few and with many partitions.
func partitionGroups(o options) []*group {
	const rate = 20_000
	few := newSteady(o, rate)
	g := &group{scenario: "partitions", variant: strconv.Itoa(rate), rounds: o.slowRounds, slowRounds: o.slowRounds, open: few.open,
		params: fmt.Sprintf("seconds=%d tx_rows=%d bytes=%d pg=%s", o.seconds, few.txRows, steadySize, o.pg)}
	for _, partitions := range []int{6, 100} {
		g.systems = append(g.systems, &system{name: strconv.Itoa(partitions), missing: few.noKafka, run: func(ctx context.Context, n int) (outcome, error) {
			s := *few // of the server that is open by now
			s.partitions = partitions
			return s.byRelay(ctx, n*1000+partitions)
		}})
	}
	return []*group{g}
}
