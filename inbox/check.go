package inbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// check finds at the start what only a person can mend.
func (r *Runner) check(ctx context.Context) error {
	tables := []string{"SELECT consumer, event_id, processed_at, kafka_topic, kafka_partition, kafka_offset, key_hash FROM public.inbox LIMIT 0"}
	if r.cfg.DeadLetterTopic != "" {
		tables = append(tables, "SELECT id, redrive_topic, changed_at FROM public.inbox_dead_letters LIMIT 0")
	}
	err := r.begin.within(ctx, func(s session) error {
		for _, query := range tables {
			if _, err := s.exec(ctx, query); err != nil {
				return fmt.Errorf("look at the tables of inbox.Schema and inbox.DeadLetterSchema: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	read := r.cfg.Topics
	if r.cfg.RetryTopic != "" {
		read = append(read[:len(read):len(read)], r.cfg.RetryTopic)
	}
	var problems []error
	for _, topic := range read {
		if _, err := r.cluster.topic(ctx, topic); err != nil {
			problems = append(problems, err)
		} else if r.cfg.Cleanup.Keep > 0 {
			problems = append(problems, r.checkCleanup(ctx, topic))
		}
	}
	if topic := r.cfg.DeadLetterTopic; topic != "" {
		if _, err := r.cluster.topic(ctx, topic); err != nil {
			problems = append(problems, err)
		} else {
			problems = append(problems, r.checkDeadLetters(ctx, topic))
		}
	}
	return errors.Join(problems...)
}

// lifetime returns how long a record may stay in a topic; unlimited for ever. A record
// goes with its segment, which is filled for segment.ms, and whose last record must be
// older than retention.ms.
func (r *Runner) lifetime(ctx context.Context, topic string) (stays time.Duration, unlimited bool, s map[string]string, err error) {
	s, err = r.cluster.settings(ctx, topic, "retention.ms", "segment.ms", "cleanup.policy")
	if err != nil {
		return 0, false, nil, err
	}
	retention, err := strconv.ParseInt(s["retention.ms"], 10, 64)
	if err != nil {
		return 0, false, nil, fmt.Errorf("read retention.ms of topic %s: %w", topic, err)
	}
	segment, err := strconv.ParseInt(s["segment.ms"], 10, 64)
	if err != nil {
		return 0, false, nil, fmt.Errorf("read segment.ms of topic %s: %w", topic, err)
	}
	const most = int64(1<<63-1) / int64(time.Millisecond)
	if retention < 0 || retention >= most-segment || segment >= most || !strings.Contains(s["cleanup.policy"], "delete") {
		return 0, true, s, nil
	}
	return time.Duration(retention+segment) * time.Millisecond, false, s, nil
}

func (r *Runner) checkCleanup(ctx context.Context, topic string) error {
	stays, unlimited, _, err := r.lifetime(ctx, topic)
	switch {
	case err != nil:
		return err
	case unlimited:
		return mistakef("the topic %s keeps records for ever (retention.ms, cleanup.policy), so a marker that is deleted may let an effect happen again: leave Cleanup.Keep at 0, or limit the retention", topic)
	case r.cfg.Cleanup.Keep < stays:
		return mistakef("Cleanup.Keep is %v, and the topic %s keeps records for up to %v (retention.ms + segment.ms), so an effect could happen again: raise it", r.cfg.Cleanup.Keep, topic, stays)
	}
	return nil
}

func (r *Runner) checkDeadLetters(ctx context.Context, topic string) error {
	s, err := r.cluster.settings(ctx, topic, "retention.ms", "cleanup.policy")
	if err != nil {
		return err
	}
	if strings.Contains(s["cleanup.policy"], "compact") {
		return mistakef("the dead-letter topic %s is compacted, and would lose dead letters with the same key: set cleanup.policy=delete", topic)
	}
	retention, err := strconv.ParseInt(s["retention.ms"], 10, 64)
	if err != nil {
		return fmt.Errorf("read retention.ms of topic %s: %w", topic, err)
	}
	if least := r.cfg.MinDeadLetterRetention; retention >= 0 && retention < least.Milliseconds() {
		return mistakef("the dead-letter topic %s keeps records for %v, and nobody may have looked at them by then: set retention.ms=-1, or lower MinDeadLetterRetention (%v)",
			topic, time.Duration(retention)*time.Millisecond, least)
	}
	return nil
}
