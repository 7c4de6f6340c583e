package debezium

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// status is what Connect's REST API says of a connector.
type status struct {
	Connector state   `json:"connector"`
	Tasks     []state `json:"tasks"`
}

type state struct {
	State string `json:"state"`
	Trace string `json:"trace"`
}

func askStatus(ctx context.Context, client *http.Client, url string) (*status, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask Connect for the connector's state: %s", resp.Status)
	}
	var s status
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		return nil, fmt.Errorf("read Connect's answer: %w", err)
	}
	return &s, nil
}

// running tells whether the connector and its one task run.
func (s *status) running() bool {
	if s.Connector.State != "RUNNING" || len(s.Tasks) == 0 {
		return false
	}
	for _, t := range s.Tasks {
		if t.State != "RUNNING" {
			return false
		}
	}
	return true
}

// failed is the stack trace of what failed, if anything did.
func (s *status) failed() (trace string, failed bool) {
	for _, st := range append([]state{s.Connector}, s.Tasks...) {
		if st.State == "FAILED" {
			return st.Trace, true
		}
	}
	return "", false
}
