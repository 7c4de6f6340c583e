package lab

import (
	"context"
	"fmt"
)

// The four ways of acknowledging an event whose handler writes an invoice, fails, and would have written the invoice's line.

var offsetFirst = Scene{
	Name:   "fails_offset_first",
	Window: "handler fails half-way; the offset is committed before it runs",
	Expect: "runs=1 invoices=0 lines=0",
	run:    func(ctx context.Context, l *lab) (string, error) { return l.acknowledge(ctx, "offset-first") },
}

var offsetAnyway = Scene{
	Name:   "fails_offset_anyway",
	Window: "handler fails half-way; the error is logged and the offset committed",
	Expect: "runs=1 invoices=1 lines=0",
	run:    func(ctx context.Context, l *lab) (string, error) { return l.acknowledge(ctx, "offset-anyway") },
}

var offsetLast = Scene{
	Name:   "fails_offset_last",
	Window: "handler fails half-way; the offset is committed after success, the effect statement by statement",
	Expect: "runs=2 invoices=2 lines=1",
	run:    func(ctx context.Context, l *lab) (string, error) { return l.acknowledge(ctx, "offset-last") },
}

var offsetWithInbox = Scene{
	Name:   "fails_with_inbox",
	Window: "handler fails half-way; marker and effect in one transaction, the offset after its commit",
	Expect: "runs=2 invoices=1 lines=1",
	run:    func(ctx context.Context, l *lab) (string, error) { return l.acknowledge(ctx, "offset-with-inbox") },
}

// acknowledge runs the worker until it has nothing to read any more: once more than its handler fails.
func (l *lab) acknowledge(ctx context.Context, role string) (string, error) {
	w, err := l.worker(ctx, role)
	if err != nil {
		return "", err
	}
	for range 3 {
		if err := finish(ctx, w.Process); err != nil {
			return "", err
		}
	}
	runs, err := l.runs(ctx, w)
	if err != nil {
		return "", err
	}
	invoices, err := l.invoices(ctx, w)
	if err != nil {
		return "", err
	}
	lines, err := l.count(ctx, `SELECT count(*) FROM lab.lines WHERE scene = $1 AND event = $2`, w.scene, w.event)
	return fmt.Sprintf("runs=%d invoices=%d lines=%d", runs, invoices, lines), err
}
