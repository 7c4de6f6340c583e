package main

import (
	"encoding/json"

	"github.com/cdc-relay/cdc-relay/inbox"
)

const typeOrderPlaced = "OrderPlaced"

// orderPlaced is the content of the event, and all that the workers know of an order.
type orderPlaced struct {
	Order    int64  `json:"order"`
	Customer string `json:"customer"`
	Item     string `json:"item"`
	Cents    int64  `json:"cents"`
	Email    string `json:"email"`
}

// isOrderPlaced is false for events of other types, which a topic may carry one day.
func isOrderPlaced(r inbox.Record) bool { return string(r.Header("eventType")) == typeOrderPlaced }

// decodeOrderPlaced leaves out the error of the decoder, which may quote the content.
func decodeOrderPlaced(r inbox.Record) (e orderPlaced, err error) {
	if json.Unmarshal(r.Value, &e) != nil || e.Order == 0 {
		return e, inbox.Permanent("the value is no "+typeOrderPlaced, nil)
	}
	return e, nil
}
