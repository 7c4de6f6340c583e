package live

import "errors"

// What a walk finds wrong at once, before its counts are judged.
var (
	errConfirmedTooEarly = errors.New("the relay confirmed the order's commit although Kafka is down: its event may be lost")
	errHeard             = errors.New("the client heard an answer that was to be lost")
)
