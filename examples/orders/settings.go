package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// settings are the environment; README.md lists it.
type settings struct {
	databaseURL   string
	brokers       []string
	kafkaTLS      bool
	kafkaUser     string // with kafkaPassword, by SCRAM-SHA-512 and always over TLS; "": none
	kafkaPassword string
	topic         string // with the events of orders
	listen        string // host:port
	mailURL       string // of the mail provider, without a path

	retryTopic, deadLetterTopic string // of this worker; empty: a record that fails blocks its partition
	attempts                    int    // until a record is a dead letter; 0: the default of the inbox
	keep                        time.Duration
	session                     time.Duration // after which the partitions of a dead worker go to others; 0: the default of the inbox
}

// load reads what the role needs, and returns every problem at once.
func load(role string, getenv func(string) string) (s settings, err error) {
	var problems []error
	text := func(name, standard string) string {
		v := getenv(name)
		if v == "" && standard == "" {
			problems = append(problems, fmt.Errorf("%s is required", name))
		}
		if v == "" {
			return standard
		}
		return v
	}
	if role == "provider" {
		s.listen = text("LISTEN", "127.0.0.1:8025")
		return s, errors.Join(problems...)
	}
	s.databaseURL = text("DATABASE_URL", "")
	if role == "serve" {
		s.listen = text("LISTEN", "127.0.0.1:8080")
		return s, errors.Join(problems...)
	}
	s.brokers = strings.Split(text("BROKERS", ""), ",")
	s.kafkaUser, s.kafkaPassword = getenv("KAFKA_USER"), getenv("KAFKA_PASSWORD")
	if s.kafkaTLS, err = strconv.ParseBool(text("KAFKA_TLS", strconv.FormatBool(s.kafkaUser != ""))); err != nil || s.kafkaUser != "" && !s.kafkaTLS {
		problems = append(problems, errors.New("KAFKA_TLS is not true or false, or false with a KAFKA_USER, whose exchange is to be encrypted"))
	}
	s.topic = text("TOPIC", "outbox.event.order")
	s.retryTopic, s.deadLetterTopic = getenv("RETRY_TOPIC"), getenv("DEAD_LETTER_TOPIC")
	if role == "mail" {
		s.mailURL = text("MAIL_URL", "http://127.0.0.1:8025")
	}
	if s.attempts, err = strconv.Atoi(text("ATTEMPTS", "0")); err != nil {
		problems = append(problems, errors.New("ATTEMPTS is no whole number"))
	}
	if s.keep, err = time.ParseDuration(text("INBOX_KEEP", "0s")); err != nil {
		problems = append(problems, errors.New("INBOX_KEEP is no duration such as 960h"))
	}
	if s.session, err = time.ParseDuration(text("SESSION_TIMEOUT", "0s")); err != nil {
		problems = append(problems, errors.New("SESSION_TIMEOUT is no duration such as 30s"))
	}
	return s, errors.Join(problems...)
}
